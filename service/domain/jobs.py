"""A job and its allocation, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from headway.contract.jobs import JobProgress, JobState, Reason
from headway.contract.spec import JobSpec

Allocation: TypeAlias = Mapping[str, tuple[int, ...]]
"""Node id to slot indices on that node, ascending. Empty when nothing is held."""


def size_of(allocation: Allocation) -> int:
    """Slots in an allocation."""
    return sum(len(slots) for slots in allocation.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run. `generation` is the allocation that runs, or ran last (0 before the first).

    `allocation` belongs to `generation`. `target` is what generation + 1 will hold, decided but not
    yet started: set while RESIZING towards a new allocation, else None.
    """

    id: str
    spec: JobSpec
    state: JobState
    reason: Reason
    message: str
    generation: int = 0
    attempt: int = 0
    """Starts so far, the running one included."""
    allocation: Allocation = field(default_factory=dict)
    target: Allocation | None = None
    pinned_size: int | None = None
    pause_requested: bool = False
    preemptions: int = 0
    infrastructure_failures: int = 0
    user_errors: int = 0
    retry_at: datetime | None = None
    """Not before this time; set after repeated failures."""
    progress: JobProgress = field(default_factory=JobProgress)
    submitted_at: datetime
    state_since: datetime
    started_at: datetime | None = None
    """When the first rank of the first generation ran."""
    finished_at: datetime | None = None

    @property
    def name(self) -> str:
        """The name its user gave it."""
        return self.spec.name

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that it may have now: the pinned one alone, or what the spec allows."""
        return (self.pinned_size,) if self.pinned_size is not None else self.spec.elastic.allowed_sizes()
