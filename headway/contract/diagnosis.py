"""What is wrong, why it matters, and how it is mended: what `headway doctor` and `GET /api/v1/diagnosis` say."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field


class Level(StrEnum):
    """`warn` can wait, `fail` cannot."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """One thing that was looked at. `why` and `hint` are about what is not well."""

    name: str
    level: Level
    found: str
    why: str = ""
    """Why it matters."""
    hint: str = ""
    """What to do: the command, where one mends it."""


class DiagnosisView(BaseModel):
    """What the service finds when it looks at itself and at what agents have told it."""

    at: datetime
    version: str
    agent_redis: str = ""
    """`host:port` of the Redis that agents read their commands from."""
    checks: list[Check] = Field(default_factory=list)
