"""Jobs in the model of the API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.contract.agents import StopCommand
from headway.contract.views.jobs import JobState

S = JobState
ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
RETRY = {"infrastructure": 2, "user_errors": 1}
NODES = {"alpha": 2, "beta": 1}
ELASTIC: tuple[dict[str, Any], ...] = (
    {"min": 1, "max": 1},
    {"min": 1, "max": 3},
    {"min": 2, "max": 2},
    {"min": 1, "max": 2, "resize": "never"},
)
ENDINGS = ("killed", "failed", "stopped", "done")
"""How the processes of a part ended, the worst first: it decides what the end of all of them means."""


@dataclass
class Job:
    """A job as the model knows it."""

    id: str
    name: str
    elastic: dict[str, Any]
    state: JobState = S.PENDING
    generation: int = 0
    pausing: bool = False
    pinned: int | None = None
    parts: set[str] = field(default_factory=set)
    """Nodes on which it holds slots."""
    started: set[str] = field(default_factory=set)
    endings: list[str] = field(default_factory=list)
    killed: int = 0
    failed: int = 0

    def allows(self, slots: int) -> bool:
        return self.elastic["min"] <= slots <= self.elastic["max"]


@dataclass(frozen=True)
class job_of:  # noqa: N801 - read as a word in `entry("released", job_of(id), 1)`
    """Enough of a job for an entry about it."""

    id: str


def command_job(command: StopCommand) -> job_of:
    return job_of(command.job_id)
