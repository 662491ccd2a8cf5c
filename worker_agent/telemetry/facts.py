"""Events on this host, for the agent's metrics and the traces of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headway.contract.agents import AnyCommand, AnyEntry, Holding, SlotInfo
from headway.contract.standstills import Standstill
from worker_agent.host.folders import StateFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSources:
    """Sources of the current state for the metrics. Any thread may call them.

    `slots` returns the slots of this host with their last known health.
    """

    slots: Callable[[], Sequence[SlotInfo]]
    holding: Callable[[], Sequence[Holding]]
    waiting: Callable[[], int]
    """Number of entries that the service does not have yet."""
    state: StateFolder


@dataclass(frozen=True, slots=True)
class EntryQueued:
    """Report entry that was queued for the service."""

    entry: AnyEntry


@dataclass(frozen=True, slots=True)
class ReportSent:
    """Report that was sent. `lease_until_s` (boot-time clock) is the lease's new end; None after a failure."""

    lease_until_s: float | None


@dataclass(frozen=True, slots=True)
class CommandRead:
    """Command that was read from the stream, `age_s` seconds after another host added it, by the clocks of both.

    `command` is None if it cannot be parsed.
    """

    command: AnyCommand | None
    age_s: float


@dataclass(frozen=True, slots=True)
class CommandHandled:
    """Command that was accepted, or ignored because of a newer one."""

    command: AnyCommand
    ignored: bool


@dataclass(frozen=True, slots=True)
class OutputShipped:
    """Output of ranks that has reached the service, and the bytes before it that were left out."""

    kept_bytes: int
    left_out_bytes: int


Fact: TypeAlias = EntryQueued | ReportSent | CommandRead | CommandHandled | OutputShipped | Standstill
Emit: TypeAlias = Callable[[Fact], None]
"""Function that receives a fact in the thread that observes it. It must neither raise nor block."""


def ignore_fact(_: Fact) -> None:
    """Do nothing; the default without telemetry."""
