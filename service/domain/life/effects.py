"""Effects of a decision about a job, in the order in which they are to be carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from headway.contract.agents import AnyCommand
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.membership import Members
from service.domain.jobs.records import AllocationRecord, Event


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Append an event to the history of the job, which is in the state `job` at that point."""

    job: Job
    event: Event


@dataclass(frozen=True, slots=True)
class AddAllocation:
    """Store the allocation of a generation that starts."""

    record: AllocationRecord


@dataclass(frozen=True, slots=True)
class StoreMembers:
    """Store the members of a generation again: more is known about their processes."""

    generation: int
    members: Members


@dataclass(frozen=True, slots=True)
class EndAllocation:
    """Store that a generation has stopped training."""

    generation: int


@dataclass(frozen=True, slots=True)
class StoreExit:
    """Store the end of a process that was started for `generation`."""

    generation: int
    exit: RankExit


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSlots:
    """Free slots that are granted to `generation`: on one node, or (None) on all; some slots, or (None) all.

    Slots in `carry_over` pass to `next_generation` at once, so that no other job gets them in between.
    """

    generation: int
    node_id: str | None
    slots: Collection[int] | None = None
    carry_over: Allocation = field(default_factory=dict)
    next_generation: int


@dataclass(frozen=True, slots=True)
class SendCommands:
    """Send commands to nodes, given by id, after the commit."""

    commands: tuple[tuple[str, AnyCommand], ...]


@dataclass(frozen=True, slots=True)
class NoteUnreachable:
    """Store that a rank on node `source_id` could not reach `address`:`port` of node `target_id`, as `failure` says."""

    source_id: str
    target_id: str
    address: str
    port: int
    failure: str


@dataclass(frozen=True, slots=True)
class CountPreemption:
    """Count the stop of a job that had not ended and does not restart elsewhere at once."""

    cause: Reason


@dataclass(frozen=True, slots=True)
class CallRound:
    """Wake the scheduler: a round may decide differently now."""


@dataclass(frozen=True, slots=True)
class RefreshPages:
    """Wake the viewers of the job, which has changed without an event."""


Effect: TypeAlias = (
    RecordEvent
    | AddAllocation
    | StoreMembers
    | EndAllocation
    | StoreExit
    | ReleaseSlots
    | SendCommands
    | NoteUnreachable
    | CountPreemption
    | CallRound
    | RefreshPages
)

Held: TypeAlias = Mapping[int, Allocation]
"""Slots that a job holds, by the generation that they are granted to."""
