"""Outcome of the attempts of a confined program on a host, by kind."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field

from headway.contract.values.text import PrintedText

ProbeKind = Literal["files", "processes", "sockets", "signals", "memory", "kernel"]
PROBE_KINDS: tuple[ProbeKind, ...] = get_args(ProbeKind)


class ProbeResult(BaseModel):
    """Attempts of one kind. `open` names those that succeeded."""

    probes: Annotated[int, Field(ge=0, le=100_000)]
    open: Annotated[list[Annotated[PrintedText, Field(max_length=1000)]], Field(max_length=1000)] = []


class IsolationFacts(BaseModel):
    """Reach of a program that was confined like a job, when the agent started."""

    mode: Literal["users", "landlock", "none"]
    results: dict[ProbeKind, ProbeResult] = Field(default_factory=dict)
