"""Findings of `headway doctor` and `GET /api/v1/diagnosis`: problem, consequence, remedy."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field


class Level(StrEnum):
    """Severity of a finding: `warn` can wait, `fail` cannot."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """The result of one check. `why` and `hint` are empty where nothing is wrong."""

    name: str
    level: Level
    found: str
    why: str = ""
    """Consequence of the problem."""
    hint: str = ""
    """Remedy, with a command where there is one."""


class DiagnosisView(BaseModel):
    """Findings of the service about itself and about its agents."""

    at: datetime
    version: str
    agent_redis: str = ""
    """`host:port` of the Redis from which agents read their commands."""
    checks: list[Check] = Field(default_factory=list)
