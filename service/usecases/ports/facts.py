"""Signals and facts that are sent after a commit: wake-ups wake other tasks, and facts are for metrics and traces.

Facts are reported after the commit, so that none is reported twice or after a rollback. They stay within this
process: metrics are summed over all processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from headway.contract.views.decisions import RoundView
from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Job
from service.domain.jobs.records import Event


class WakeUp(StrEnum):
    """Wake-up signals that are sent after a commit.

    A lost signal only delays work, since every receiver also polls.
    """

    ROUND = "round"
    COMMANDS = "commands"
    EVENTS = "events"
    LOGS = "logs"
    EXECUTION = "execution"
    """Sent when output of a command beside a rank has arrived."""
    SIMULATIONS = "simulations"
    AFTER = "after"
    """Sent when a job may start because the last of those that it waits for has ended."""
    TRIALS = "trials"
    """Sent when a trial has reached a rung of `sweep.stop`, so that trials may end early."""
    ACCESS = "access"
    """Sent when access rights shrink, so that processes drop what they have cached about tokens."""


class WakeUps(Protocol):
    """Wake-up signals between processes and tasks."""

    async def wake(self, wake_up: WakeUp, about: str = "") -> None:
        """Send a wake-up in the next batch."""

    def heard(self, *wake_ups: tuple[WakeUp, str]) -> AbstractAsyncContextManager[asyncio.Event]:
        """Return a context with an event that is set when one of the wake-ups arrives. Its caller clears it."""

    def is_heard(self, wake_up: WakeUp, about: str) -> bool:
        """Return True if a task in this process waits for the wake-up."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a job, with the job as it is after the event."""

    job: Job
    event: Event


@dataclass(frozen=True, slots=True)
class BegunTrace:
    """The trace of a job that is being submitted. Both fields are W3C Trace Context `traceparent` values."""

    traceparent: str
    """The root span of the job. All its other spans descend from it."""
    asked_by: str | None
    """The span of the submitting caller, if that is traced."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The submission of a job."""

    job: Job
    trace: BegunTrace | None


@dataclass(frozen=True, slots=True)
class Preempted:
    """The stop of a job that had not ended and does not restart elsewhere at once."""

    cause: Reason


@dataclass(frozen=True, slots=True)
class Decided:
    """A round with its changes."""

    round: RoundView


@dataclass(frozen=True, slots=True)
class PolicyReplaced:
    """A round that the default policy decided, because the chosen policy failed."""

    policy: str
    """The policy that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTaken:
    """The acknowledgement of a command by its node."""

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


Fact: TypeAlias = Happened | Accepted | Preempted | Decided | PolicyReplaced | CommandTaken
Tell: TypeAlias = Callable[[Fact], None]
"""A receiver of facts. It must neither raise nor wait."""


def ignore_fact(_: Fact) -> None:
    """Ignore a fact, in processes without observers."""
