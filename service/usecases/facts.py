"""What has happened, for those who watch the service: metrics and traces. Told after commit, so that nothing is told twice or of
what was rolled back, and only in this process: whoever counts adds up all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from headway.contract.decisions import RoundView
from headway.contract.jobs import Reason
from service.domain.jobs import Job
from service.usecases.records import Event


@dataclass(frozen=True, slots=True)
class Happened:
    """Something happened to a job, which is as it was after it."""

    job: Job
    event: Event


@dataclass(frozen=True, slots=True)
class BegunTrace:
    """The trace of a job that is being submitted. Both are `traceparent`s of W3C Trace Context."""

    traceparent: str
    """Its first span: all others come from it."""
    asked_by: str | None
    """The span of whoever submits it, if that is traced."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job was submitted."""

    job: Job
    trace: BegunTrace | None


@dataclass(frozen=True, slots=True)
class Preempted:
    """A job was stopped that had not ended, and was not to go on elsewhere at once."""

    cause: Reason


@dataclass(frozen=True, slots=True)
class Decided:
    """A round, and what it changed."""

    round: RoundView


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTaken:
    """A node has taken a command up."""

    command_id: str
    node_id: str
    kind: str
    job_id: str
    project: str
    reason: str
    generation: int
    traceparent: str | None
    created_at: datetime
    acknowledged_at: datetime


Fact: TypeAlias = Happened | Accepted | Preempted | Decided | CommandTaken
Tell: TypeAlias = Callable[[Fact], None]
"""Takes a fact in; must neither raise nor wait."""


def tell_nobody(_: Fact) -> None:
    """Of no interest."""
