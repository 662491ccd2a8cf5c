"""Credentials of agents, and short-lived credentials for the objects and secrets of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, model_validator

JOB_ID_PATTERN = r"^j[0-9a-z]{8,40}$"
MAX_GENERATION = 2**31 - 1


class NodeCredentials(BaseModel):
    """New credentials of a node. The old ones stay valid until the first use of the new ones."""

    node_token: str
    redis_url: str


class _RunRequest(BaseModel):
    job_id: Annotated[str, Field(pattern=JOB_ID_PATTERN)]
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]


class StorageRequest(_RunRequest):
    """Request for access to the objects of one generation of a job that the node runs."""


class StorageCredentials(BaseModel):
    """Keys that give access to the objects under `uri` and to no others, until `expires_at`."""

    uri: str
    endpoint_url: str | None = None
    """Endpoint of the object store; None for the provider's default."""
    region: str | None = None
    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime


class StorageTicket(BaseModel):
    """A ticket with which ranks have requests for the objects under `uri` signed, until `expires_at`.

    The service holds the keys and signs each request. It refuses when the node does not hold the run.
    """

    uri: str
    ticket: str
    expires_at: datetime


class StorageAccess(BaseModel):
    """The way that ranks reach their checkpoints: keys, or a ticket.

    With neither, ranks use the access of their host, as for a shared folder.
    """

    credentials: StorageCredentials | None = None
    ticket: StorageTicket | None = None


OBJECT_KEY_PATTERN = r"^[A-Za-z0-9_~-][A-Za-z0-9._~-]*(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$"
"""Relative object keys that a file-based object store cannot resolve to a path outside of its folder."""
MAX_CALLS = 64
_ObjectKey = Annotated[str, Field(pattern=OBJECT_KEY_PATTERN, max_length=700)]
_UPLOAD = frozenset({"part", "complete", "abort"})


class StorageCall(BaseModel):
    """A request to the object storage that a rank wants to make.

    `begin`, `part`, `complete` and `abort` belong to multipart uploads (`upload_id`, and `part` from 1).
    `list` needs no key; with one, it lists the keys after it.
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
            raise ValueError(
                "upload_id is required for part, complete and abort, and allowed for nothing else"
            )
        if (self.part is not None) != (self.do == "part"):
            raise ValueError("part is required for the call part, and allowed for nothing else")
        return self


class SignRequest(BaseModel):
    """Requests to be signed for the bearer of a ticket."""

    calls: Annotated[list[StorageCall], Field(min_length=1, max_length=MAX_CALLS)]


class SignReply(BaseModel):
    """The signed URLs, in the order of the requests. Each URL allows its one request until `expires_at`."""

    urls: list[str]
    expires_at: datetime


class SecretsRequest(_RunRequest):
    """Request for the secrets of a job, for ranks of a generation that holds slots of the node."""


class SecretsReply(BaseModel):
    """Environment variables and their values. The agent keeps them in memory only and displays them nowhere."""

    model_config = ConfigDict(hide_input_in_errors=True)

    env: dict[str, SecretStr]

    @field_serializer("env", when_used="json")
    def _plain(self, env: dict[str, SecretStr]) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in env.items()}
