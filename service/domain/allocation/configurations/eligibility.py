"""The jobs that a round decides about, and the slots that they may keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.spec import Resize
from headway.contract.values.devices import mix_name
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.jobs.first_step import SILENT_S
from service.domain.jobs.job import Job, size_of
from service.domain.jobs.retries import LONGEST_BACKOFF_S
from service.domain.jobs.survival import LONGEST_GROWTH_BACKOFF_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The slots that a job holds now.

    Attributes:
        size: number of slots.
        kind: device kind of the slots, of two kinds `a100:2+t4:2`; None without slots.
        keepable: slots that the job may continue to use.
        by_pool: the keepable slots by name of their pool.
        private_by_pool: number of keepable slots by pool that no other job could have, because their nodes
            are cordoned.
    """

    size: int = 0
    kind: str | None = None
    keepable: tuple[SlotKey, ...] = ()
    by_pool: Mapping[str, tuple[SlotKey, ...]] = field(default_factory=dict)
    private_by_pool: Mapping[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """True if the job may stay exactly as it is."""
        return 0 < self.size == len(self.keepable)


def is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the job holds nothing and a round may start it."""
    due = has_come(job.retry_at, LONGEST_BACKOFF_S, snapshot.now)
    may_start = job.state in {JobState.PENDING, JobState.RECOVERING} and not job.pause_requested
    return may_start and due and not snapshot.slots_held_by(job.id)


def has_come(moment: datetime | None, longest_s: float, now: datetime) -> bool:
    """Return True if the end of a wait has come.

    A time much further away than the longest wait was written by a clock that has been set back since; it
    counts as past.
    """
    return moment is None or not 0 < (moment - now).total_seconds() <= 2 * longest_s


def is_movable(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the job runs on all of its slots and a round may change them.

    A generation that has left some of its slots is ending; it must not be taken for a smaller one.
    """
    whole = len(snapshot.slots_held_by(job.id)) == size_of(job.allocation)
    return job.state is JobState.RUNNING and whole and job.spec.elastic.resize is not Resize.NEVER


def deciding_jobs(snapshot: Snapshot) -> tuple[Job, ...]:
    """Return the jobs that a round decides about, in the order of their submission.

    The other jobs are in transition and keep their slots.
    """
    return tuple(
        job
        for job in sorted(snapshot.jobs.values(), key=lambda job: (job.submitted_at, job.id))
        if is_waiting(job, snapshot) or is_movable(job, snapshot)
    )


def holding_of(job: Job, snapshot: Snapshot) -> Holding:
    """Return the slots that the job holds and the slots that it may keep."""
    held = snapshot.slots_held_by(job.id)
    if not held:
        return Holding()
    # A slot that its node no longer reports (a GPU that is gone) has no kind and cannot be kept.
    reported = Counter(kind for kind in map(snapshot.kind_of, held) if kind)
    first = next(iter(reported), None)
    mix = job.spec.elastic.mix
    kinds = {kind for kind in reported if kind == first or {kind, first} <= set(mix)}
    keepable = tuple(
        key for key in held if snapshot.nodes[key.node_id].keeps_jobs and snapshot.kind_of(key) in kinds
    )
    by_pool: dict[str, list[SlotKey]] = {}
    private: dict[str, int] = {}
    for key in keepable:
        node = snapshot.nodes[key.node_id]
        pool = snapshot.pool_on(node, snapshot.kind_of(key)).name
        by_pool.setdefault(pool, []).append(key)
        if node.state is NodeState.CORDONED:
            private[pool] = private.get(pool, 0) + 1
    return Holding(
        size=len(held),
        kind=mix_name({kind: reported[kind] for kind in kinds}) if kinds else None,
        keepable=keepable,
        by_pool={pool: tuple(keys) for pool, keys in by_pool.items()},
        private_by_pool=private,
    )


def weight_of(job: Job) -> float:
    """Return the weight of a job's utility by priority: 1 at priority 50, 2 at 75, 4 at 100."""
    return math.pow(2.0, (job.spec.priority - 50) / 25)


def backs_off(job: Job, snapshot: Snapshot) -> bool:
    """Return True during the backoff after new ranks did not come up; the job then gets no new ranks."""
    return not has_come(job.grow_after, LONGEST_GROWTH_BACKOFF_S, snapshot.now)


def is_left_over(job: Job, size: int) -> bool:
    """Return True if a loss has left the job at a size that its spec does not allow; it must change."""
    return size > 0 and job.live and size not in job.spec.allowed_sizes()


def is_silent(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the job has run for `SILENT_S` without a measurement and is assumed never to send one."""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    return job.state is JobState.RUNNING and not snapshot.measurements.get(job.id, ()) and ran_s >= SILENT_S


def explores(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the job's sizes are tried one after another.

    It is False for a job with a fixed size, for one that can never change its size, and for one that is never
    measured.
    """
    rigid = job.spec.elastic.resize is Resize.NEVER
    return job.pinned_size is None and not rigid and not is_silent(job, snapshot)
