"""What an agent is given to work with: its own credentials, and short-lived ones for the objects of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, model_validator

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


class StorageTicket(BaseModel):
    """With what ranks have requests for the objects under `uri` signed, until `expires_at`: each by the service, which holds the
    keys, and none while the node does not hold the run.
    """

    uri: str
    ticket: str
    expires_at: datetime


class StorageAccess(BaseModel):
    """How ranks get at their checkpoints: by keys, or by a ticket. With neither, by what their host gives them: a shared folder
    needs none.
    """

    credentials: StorageCredentials | None = None
    ticket: StorageTicket | None = None


OBJECT_KEY_PATTERN = r"^[A-Za-z0-9_~-][A-Za-z0-9._~-]*(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$"
"""Relative, and nothing in it that a store which keeps objects as files could take for a way out."""
MAX_CALLS = 64
_ObjectKey = Annotated[str, Field(pattern=OBJECT_KEY_PATTERN, max_length=700)]
_UPLOAD = frozenset({"part", "complete", "abort"})


class StorageCall(BaseModel):
    """A request to the object storage that a rank is going to make. `begin`, `part`, `complete` and `abort` are of uploads in
    parts (`upload_id`, and `part` from 1); `list` needs no key and goes on after one.
    """

    do: Literal["get", "put", "delete", "list", "begin", "part", "complete", "abort"]
    key: _ObjectKey | None = None
    upload_id: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[!-~]+$")] | None = None
    part: Annotated[int, Field(ge=1, le=10_000)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.key is None and self.do != "list":
            raise ValueError(f"{self.do} needs a key")
        if (self.upload_id is not None) != (self.do in _UPLOAD):
            raise ValueError("upload_id goes with part, complete and abort, and with nothing else")
        if (self.part is not None) != (self.do == "part"):
            raise ValueError("a number of a part goes with part, and with nothing else")
        return self


class SignRequest(BaseModel):
    """What is to be signed, for the bearer of a ticket."""

    calls: Annotated[list[StorageCall], Field(min_length=1, max_length=MAX_CALLS)]


class SignReply(BaseModel):
    """Where each of the requests goes, in their order. Who has such a URL can make that one request until `expires_at`."""

    urls: list[str]
    expires_at: datetime


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
