"""A job and its allocation, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from headway.contract.jobs import JobProgress, JobState, Reason
from headway.contract.spec import JobSpec, Resize
from service.domain.retries import Failure

Allocation: TypeAlias = Mapping[str, tuple[int, ...]]
"""Node id to slot indices on that node, ascending. Empty when nothing is held."""


def size_of(allocation: Allocation) -> int:
    """Slots in an allocation."""
    return sum(len(slots) for slots in allocation.values())


def class_of(spec: JobSpec) -> str:
    """The class of a job: its project, and its name without a run's number (`gpt-small-17` is a `gpt-small`).

    Jobs of one class are taken to have the same speed and size until each has shown its own.
    """
    return f"{spec.project}/{re.sub(r'(-?[0-9]+)+$', '', spec.name) or spec.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of members in place that is under way. `generation` is the one that it leads to.

    It is *prepared* while its newcomers come up and training goes on without them, and *ordered* once the members
    were told. Before the order, giving up costs nothing.
    """

    generation: int
    began_at: datetime
    deadline: datetime
    """When it is given up (prepared), or what is left of the job is stopped and started anew (ordered)."""
    ordered: bool = False
    lost: bool = False
    """It follows the loss of members."""
    stopping: bool = False
    """The whole job is being stopped meanwhile, so that nothing will come of it."""
    global_batch: int | None = None
    """What steps are to take from it on; None: as much as before."""
    ready_s: Mapping[int, float] = field(default_factory=dict)
    """Newcomers that wait for the order, by rank, and the seconds that each took."""
    prepare_s: float = 0.0
    """From its begin to the order."""
    left: tuple[tuple[int, int], ...] = ()
    """Who has said that it leaves, as (born generation, born rank)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run. `generation` is the allocation that runs, or ran last (0 before the first).

    `allocation` belongs to `generation`. `target` is what the next generation will hold, decided but not yet
    started: set while RESIZING by a restart towards a new allocation, else None. The next generation's number
    is `newest_generation` + 1, since numbers of generations that were given up are not used again.
    """

    id: str
    spec: JobSpec
    state: JobState
    reason: Reason
    message: str
    generation: int = 0
    newest_generation: int = 0
    """The highest number that was ever given to a generation."""
    attempt: int = 0
    """Starts so far, the running one included."""
    allocation: Allocation = field(default_factory=dict)
    target: Allocation | None = None
    live: bool = False
    """The running ranks follow orders: members change in place, and a loss is survived."""
    switch: Switch | None = None
    pinned_size: int | None = None
    pause_requested: bool = False
    preemptions: int = 0
    infrastructure_failures: int = 0
    """Those that count: since training has come further than ever before."""
    user_errors: int = 0
    failures: tuple[Failure, ...] = ()
    """The latest ones, oldest first."""
    retry_at: datetime | None = None
    """Not before this time; set after repeated failures."""
    samples_at_loss: int | None = None
    """Where training went on after the last loss that was survived; None since the last start."""
    growth_failures: int = 0
    """Switches in a row that were given up since their newcomers did not come up."""
    grow_after: datetime | None = None
    """No newcomers are started before this time."""
    progress: JobProgress = field(default_factory=JobProgress)
    traceparent: str | None = None
    """Where its trace began, as W3C Trace Context writes it; None: it is not traced."""
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

    @property
    def follows_orders(self) -> bool:
        """Whether its ranks may come to change in place, if its script uses the library."""
        return self.spec.elastic.resize is Resize.LIVE

    @property
    def adapts(self) -> bool:
        """Whether its global batch may change while it trains: by orders, as members do."""
        return self.spec.batch.policy == "adaptive" and self.follows_orders

    @property
    def switching(self) -> Switch | None:
        """The switch that the job is to go on from; None when there is none, or the job is being stopped."""
        return None if self.switch is None or self.switch.stopping else self.switch
