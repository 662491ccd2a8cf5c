"""Texts on the jobs that hold the slots for which another job waits: what they hold beyond their minimums, and why they keep it."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.reason_texts import named
from service.domain.cluster.pools import Pool, slots_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Holders:
    """Jobs that hold slots which a waiting job could use, in three groups.

    Attributes:
        fixed: running jobs whose sizes a user or a job file fixes.
        moving: jobs that start, change or end.
        elastic: the other running jobs.
        surplus: slots that each job, by id, holds beyond the smallest size of its job file.
    """

    fixed: tuple[Job, ...]
    moving: tuple[Job, ...]
    elastic: tuple[Job, ...]
    surplus: dict[str, int]

    def beyond(self, jobs: Iterable[Job]) -> list[Job]:
        """Return those of the jobs that hold more than their minimums."""
        return [job for job in jobs if self.surplus[job.id] > 0]


def holders_in(pools: Set[Pool], snapshot: Snapshot) -> Holders:
    """Return the jobs that hold slots of these pools, which serve a waiting job."""
    fixed, moving, elastic, surplus = [], [], [], {}
    for job in sorted(snapshot.jobs.values(), key=lambda one: (one.submitted_at, one.id)):
        held = snapshot.slots_held_by(job.id)
        if not any(snapshot.pool_of(key) in pools for key in held):
            continue
        surplus[job.id] = max(0, len(held) - min(job.spec.allowed_sizes()))
        if job.state is not JobState.RUNNING:
            moving.append(job)
        elif job.spec.elastic.resize is Resize.NEVER or job.pinned_size == len(held):
            fixed.append(job)
        else:
            elastic.append(job)
    return Holders(tuple(fixed), tuple(moving), tuple(elastic), surplus)


def surplus_text(holders: Holders, least: int, left: int, project: str) -> str:
    """Return the reason that a job of at least `least` slots, of which `left` are free, gets none from running jobs."""
    spare = sum(holders.surplus[job.id] for job in holders.elastic)
    if spare + left >= least and spare:
        return f"; running jobs have {slots_of(spare, None)} beyond their minimums, but cannot free enough for it yet"
    if spare:
        return f"; running jobs have {slots_of(spare, None)} beyond their minimums, too few for this job"
    parts = []
    for jobs, why in ((holders.fixed, "fixed in size"), (holders.moving, "changing now")):
        beyond = holders.beyond(jobs)
        if beyond:
            one = len(beyond) == 1
            parts.append(
                f"{named(beyond, project)} {'holds' if one else 'hold'} more than {'its minimum' if one else 'their minimums'} "
                f"and {'is' if one else 'are'} {why}"
            )
    return "".join(f"; {part}" for part in parts) or "; no running job holds more than its minimum"


def unbounded_text(holders: Holders, project: str) -> str:
    """Return when a job starts whose wait has no bound."""
    if holders.moving:
        changing = named(holders.moving, project)
        has = "has" if len(holders.moving) == 1 else "have"
        return f"; it is decided again once {changing} {has} started, changed or ended"
    if holders.fixed and not holders.elastic:
        return "; it starts once enough of their slots are free: their sizes are fixed"
    return "; it starts once enough slots are free"
