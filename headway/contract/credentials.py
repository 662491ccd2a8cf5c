"""What an agent is given to work with: its own credentials, and short-lived ones for the objects of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

JOB_ID_PATTERN = r"^j[0-9a-z]{8,40}$"
MAX_GENERATION = 2**31 - 1


class NodeCredentials(BaseModel):
    """New credentials of a node. Those that it had are valid until the first use of these."""

    node_token: str
    redis_url: str


class StorageRequest(BaseModel):
    """Access to the objects of a job that the node runs: of this generation of it."""

    job_id: Annotated[str, Field(pattern=JOB_ID_PATTERN)]
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]


class StorageCredentials(BaseModel):
    """Keys that reach the objects under `uri` and no others, until `expires_at`."""

    uri: str
    endpoint_url: str | None = None
    """None for the provider's own."""
    region: str | None = None
    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime


class StorageAccess(BaseModel):
    """How ranks get at their checkpoints. Without credentials, by what their host gives them: a shared folder needs none."""

    credentials: StorageCredentials | None = None


class SecretsRequest(BaseModel):
    """The secrets of a job, for the ranks of a generation of which the node holds slots."""

    job_id: Annotated[str, Field(pattern=JOB_ID_PATTERN)]
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]


class SecretsReply(BaseModel):
    """Environment variables and their values. They are kept in memory only, and shown nowhere."""

    model_config = ConfigDict(hide_input_in_errors=True)

    env: dict[str, SecretStr]

    @field_serializer("env", when_used="json")
    def _plain(self, env: dict[str, SecretStr]) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in env.items()}
