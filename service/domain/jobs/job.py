"""Value types for a job and its allocation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from headway.contract.spec import JobSpec, Resize
from headway.contract.values.meshes import mesh_of
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.jobs.retries import Failure

Allocation: TypeAlias = Mapping[str, tuple[int, ...]]
"""Mapping of node id to the slot indices on that node, ascending. It is empty when the job holds nothing."""


def size_of(allocation: Allocation) -> int:
    """Return the number of slots in an allocation."""
    return sum(len(slots) for slots in allocation.values())


def minus(allocation: Allocation, other: Allocation) -> Allocation:
    """Return the slots of `allocation` that are not in `other`."""
    rest = {
        node: tuple(slot for slot in slots if slot not in other.get(node, ()))
        for node, slots in allocation.items()
    }
    return {node: slots for node, slots in rest.items() if slots}


def class_of(spec: JobSpec) -> str:
    """Return the class of a job: its project and its name without the number of the run.

    `gpt-small-17` is of class `gpt-small`. The scheduler assumes equal speed and size for the jobs of one
    class until each job has measurements of its own.
    """
    return f"{spec.project}/{re.sub(r'(-?[0-9]+)+$', '', spec.name) or spec.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A membership change in place that is under way. `generation` is the one that it leads to.

    It is *prepared* while its new ranks start and training continues without them. It is *ordered* once the
    members have been told. Before the order, cancelling costs nothing.
    """

    generation: int
    began_at: datetime
    deadline: datetime
    """Deadline of the change. A prepared change is then cancelled; after an ordered one the rest of the job
    restarts.
    """
    ordered: bool = False
    lost: bool = False
    """True if the change follows the loss of members."""
    stopping: bool = False
    """True if the whole job is being stopped meanwhile, so that the change cannot complete."""
    global_batch: int | None = None
    """Global batch from this change on; None leaves it as it is."""
    batch_effect: float | None = None
    """Exponent by which ranks count their progress from this change on; None leaves it as it is."""
    mesh: str | None = None
    """Mesh of the ranks from this change on, of a sharded job; None for others."""
    ready_s: Mapping[int, float] = field(default_factory=dict)
    """New ranks that wait for the order, mapped to the seconds that each took to get ready."""
    prepare_s: float = 0.0
    """Seconds from the begin of the change to its order."""
    left: tuple[tuple[int, int], ...] = ()
    """Processes that reported that they leave, as (born generation, born rank)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training run. `generation` is the allocation that runs, or ran last (0 before the first).

    `allocation` belongs to `generation`. `target` is the allocation of the next generation, decided but not
    yet started. It is set only while the job is RESIZING by a restart towards a new allocation. The next
    generation has the number `newest_generation` + 1, because numbers of cancelled generations are not
    reused.
    """

    id: str
    spec: JobSpec
    state: JobState
    reason: Reason
    message: str
    generation: int = 0
    newest_generation: int = 0
    """Highest number ever given to a generation of the job."""
    attempt: int = 0
    """Number of starts so far, including the running one."""
    allocation: Allocation = field(default_factory=dict)
    target: Allocation | None = None
    target_batch: int | None = None
    """Global batch of the generation that starts on `target`; None: the present one."""
    live: bool = False
    """True if the running ranks can change members in place. They also survive a loss, unless it `needs_every_rank`."""
    sharded: bool = False
    """True if each rank held only a part of the model when the job last trained."""
    switch: Switch | None = None
    pinned_size: int | None = None
    pause_requested: bool = False
    waits: bool = False
    """True while jobs that it must start after (`after`) have not ended. Rounds leave it out."""
    preemptions: int = 0
    infrastructure_failures: int = 0
    """Infrastructure failures that count against the retry budget: those since training last passed its
    furthest point.
    """
    user_errors: int = 0
    failures: tuple[Failure, ...] = ()
    """Latest failures, oldest first."""
    retry_at: datetime | None = None
    """Earliest time of the next start; set after repeated failures."""
    samples_at_loss: int | None = None
    """Samples at which training continued after the last survived loss; None if there was none since the last
    start.
    """
    growth_failures: int = 0
    """Number of membership changes in a row that were cancelled because their new ranks did not come up."""
    grow_after: datetime | None = None
    """Earliest time at which new ranks are started for a membership change."""
    progress: JobProgress = field(default_factory=JobProgress)
    traceparent: str | None = None
    """Root of the job's trace in the W3C Trace Context format; None if the job is not traced."""
    owner: str | None = None
    """Name of the user or robot that submitted the job; None for jobs of older versions."""
    submitted_at: datetime
    state_since: datetime
    started_at: datetime | None = None
    """Time at which the first rank of the first generation ran."""
    finished_at: datetime | None = None

    @property
    def name(self) -> str:
        """Name that the user gave the job."""
        return self.spec.name

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that the job may have now: the pinned size alone, or the sizes that its spec allows."""
        return (self.pinned_size,) if self.pinned_size is not None else self.spec.allowed_sizes()

    @property
    def follows_orders(self) -> bool:
        """True if the job file permits membership changes in place; the script must also use the library."""
        return self.spec.elastic.resize is Resize.LIVE

    def deadline_left_s(self, now: datetime) -> float:
        """Return the seconds until the job's deadline, negative after it; infinite without one."""
        deadline = self.spec.goal.deadline
        return math.inf if deadline is None else (deadline - now).total_seconds()

    @property
    def survives_losses(self) -> bool:
        """True if the running ranks continue in place when others are lost."""
        return self.live and not self.needs_every_rank

    @property
    def needs_every_rank(self) -> bool:
        """True if a lost rank takes the only copy of its part of the model with it."""
        return not self.has_copies_on(self.progress.mesh)

    def has_copies_on(self, mesh: str | None) -> bool:
        """Return True if every part of the model is on two ranks of a mesh, by replicas or by `elastic.redundancy`."""
        if not self.sharded or self.spec.elastic.redundant:
            return True
        return self.progress.replicates and mesh is not None and mesh_of(mesh).has_copies

    @property
    def adapts(self) -> bool:
        """True if the global batch may change while the job trains, by the same orders as membership changes."""
        return self.spec.batch.policy == "adaptive" and self.follows_orders

    @property
    def scales_rate(self) -> bool:
        """True if the learning rate follows the batch: by the rule that the ranks report, or else by the job file.

        The rule `auto` counts as one that scales until the ranks say otherwise.
        """
        return (self.progress.lr_rule or self.spec.batch.lr_rule) != "none"

    @property
    def switching(self) -> Switch | None:
        """Membership change that the job continues from; None without one, or while the job is being stopped."""
        return None if self.switch is None or self.switch.stopping else self.switch
