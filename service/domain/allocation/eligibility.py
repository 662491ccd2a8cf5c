"""Who takes part in a round, and which of its slots a job may keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.jobs import JobState
from headway.contract.spec import Resize
from service.domain.cluster import SlotKey, Snapshot, allocation_of
from service.domain.failures import LONGEST_BACKOFF_S, LONGEST_GROWTH_BACKOFF_S
from service.domain.jobs import Job, size_of

SILENT_S = 20.0
"""A job that runs this long without a measurement will never send one: its script is plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a job holds now.

    Attributes:
        size: slots.
        kind: of its slots; None when it holds none.
        keepable: slots that it may go on using.
        by_pool: the same by name of their pool.
        private_by_pool: of these, how many nobody else could have: they are on cordoned nodes.
    """

    size: int = 0
    kind: str | None = None
    keepable: tuple[SlotKey, ...] = ()
    by_pool: Mapping[str, tuple[SlotKey, ...]] = field(default_factory=dict)
    private_by_pool: Mapping[str, int] = field(default_factory=dict)

    @property
    def private(self) -> int:
        """How many of its slots nobody else could have."""
        return sum(self.private_by_pool.values())

    @property
    def whole(self) -> bool:
        """Whether the job may stay just as it is."""
        return 0 < self.size == len(self.keepable)


def is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job holds nothing and a round may start it."""
    due = has_come(job.retry_at, LONGEST_BACKOFF_S, snapshot.now)
    may_start = job.state in {JobState.PENDING, JobState.RECOVERING} and not job.pause_requested
    return may_start and due and not snapshot.slots_held_by(job.id)


def has_come(moment: datetime | None, longest_s: float, now: datetime) -> bool:
    """Whether the moment until which something waits has come. One that is much further away than any wait lasts was written
    by a clock that has been set back since.
    """
    return moment is None or not 0 < (moment - now).total_seconds() <= 2 * longest_s


def is_movable(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job runs, on all of its slots, and a round may change what it has.

    A generation that has left some of them is coming to its end: it must not be taken for a smaller one.
    """
    whole = len(snapshot.slots_held_by(job.id)) == size_of(job.allocation)
    return job.state is JobState.RUNNING and whole and job.spec.elastic.resize is not Resize.NEVER


def settled_job(job: Job, keys: Sequence[SlotKey]) -> Job:
    """The job as a round could decide about it if nothing of it was under way: it runs on these slots, or waits.

    One that never changes has the size that it has, and no other.
    """
    elastic, pinned = job.spec.elastic, job.pinned_size
    if elastic.resize is Resize.NEVER and keys:
        pinned = len(keys)
        elastic = elastic.model_copy(update={"resize": Resize.RESTART})
    return replace(
        job,
        state=JobState.RUNNING if keys else JobState.PENDING,
        spec=job.spec.model_copy(update={"elastic": elastic}),
        pinned_size=pinned,
        pause_requested=False,
        retry_at=None,
        allocation=allocation_of(keys),
        target=None,
        switch=None,
    )


def deciding_jobs(snapshot: Snapshot) -> tuple[Job, ...]:
    """The jobs that a round decides about, in the order of their submits. The others are on their way, and keep
    what they hold.
    """
    return tuple(
        job
        for job in sorted(snapshot.jobs.values(), key=lambda job: (job.submitted_at, job.id))
        if is_waiting(job, snapshot) or is_movable(job, snapshot)
    )


def holding_of(job: Job, snapshot: Snapshot) -> Holding:
    """What the job holds, and what of it it may keep."""
    held = snapshot.slots_held_by(job.id)
    if not held:
        return Holding()
    # A slot that its node no longer reports (a GPU that is gone) has no kind, and cannot be kept.
    kind = next((kind for kind in map(snapshot.kind_of, held) if kind), None)
    keepable = tuple(
        key for key in held if snapshot.nodes[key.node_id].keeps_jobs and snapshot.kind_of(key) == kind
    )
    by_pool: dict[str, list[SlotKey]] = {}
    private: dict[str, int] = {}
    for key in keepable:
        node = snapshot.nodes[key.node_id]
        pool = snapshot.pool_on(node, kind or "").name
        by_pool.setdefault(pool, []).append(key)
        if node.state is NodeState.CORDONED:
            private[pool] = private.get(pool, 0) + 1
    return Holding(
        size=len(held),
        kind=kind,
        keepable=keepable,
        by_pool={pool: tuple(keys) for pool, keys in by_pool.items()},
        private_by_pool=private,
    )


def weight_of(job: Job) -> float:
    """How much one unit of the job's utility counts, by priority: 50 is 1, 75 is 2, 100 is 4."""
    return math.pow(2.0, (job.spec.priority - 50) / 25)


def backs_off(job: Job, snapshot: Snapshot) -> bool:
    """Whether no newcomers are to be started for the job yet, since the last ones did not come up."""
    return not has_come(job.grow_after, LONGEST_GROWTH_BACKOFF_S, snapshot.now)


def is_left_over(job: Job, size: int) -> bool:
    """Whether a loss has left the job a size that its spec does not allow: it does not stay there."""
    return size > 0 and job.live and size not in job.spec.elastic.allowed_sizes()


def is_silent(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job runs for so long without a measurement that it will never send one."""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    return job.state is JobState.RUNNING and not snapshot.measurements.get(job.id, ()) and ran_s >= SILENT_S


def explores(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job's sizes are tried one after another. Not if it is to have one size, if it can never have another,
    or if nothing is ever measured of it.
    """
    rigid = job.spec.elastic.resize is Resize.NEVER
    return job.pinned_size is None and not rigid and not is_silent(job, snapshot)
