"""After the database was brought back from a backup: make it safe in a world that has gone on without it.

What agents run, which commands are under way and which generations were given out since, the database does not know. So
everything that it believed to run has ended, as if it had been asked to stop; every number that is given out from here on
is above any that was given out before; and no node gets a job until its agent has said that nothing runs there that should
not. Jobs start again from their last checkpoints, which are newer than the backup where storage is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from headway.contract.jobs import JobState
from service.domain.failures import RankExit
from service.domain.jobs import Job
from service.domain.membership import born
from service.usecases.generations import go_on
from service.usecases.orders import Launch, crew_of
from service.usecases.ports import Transaction
from service.usecases.transition import record

GENERATIONS_LEFT_OUT = 1_000_000
"""More than a job can have had since any backup: a change of members takes a fraction of a second at least, and this many
would take days of nothing else.
"""


class Restoration(Protocol):
    """What only a restored database is asked for."""

    async def known_until(self) -> datetime | None:
        """The last moment that anything in the database is from; None when it is empty."""
        ...

    async def unended_jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        ...

    async def forget_field(self, message: str, terms_left_out: int) -> int:
        """No node is known to be alive, no command is under way, and who led leads no longer. Returns how many nodes."""
        ...

    async def restored(self, known_until: datetime, now: datetime) -> None:
        """The database may be used again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore found. What happened between `known_until` and `at` is in nobody's bill."""

    known_until: datetime
    at: datetime
    stopped: int
    """Jobs that were believed to run, and start again."""
    waiting: int
    nodes: int
    bundles: tuple[str, ...]
    """Digests that jobs which have not ended refer to."""


async def bring_back(tx: Transaction, restoration: Restoration, launch: Launch, now: datetime) -> Restored:
    """Cut the database loose from the field as it was. Doing so again is safe, and costs the jobs another start."""
    known_until = await restoration.known_until() or now
    message = f"the database was restored as of {known_until:%Y-%m-%d %H:%M:%S} UTC"
    nodes = await restoration.forget_field(f"{message}; waiting for its agent", GENERATIONS_LEFT_OUT)
    jobs = await tx.jobs.lock_many(sorted(await restoration.unended_jobs()))
    stopped = 0
    for job in jobs.values():
        if _may_run(job):
            stopped += 1
            job = await _stopped(tx, job, launch, message, known_until)  # noqa: PLW2901
        if job.finished_at is None:
            newest = job.newest_generation + GENERATIONS_LEFT_OUT
            await tx.jobs.save(replace(job, newest_generation=newest))
    await restoration.restored(known_until, now)
    return Restored(
        known_until=known_until,
        at=now,
        stopped=stopped,
        waiting=len(jobs) - stopped,
        nodes=nodes,
        bundles=tuple(sorted({job.spec.bundle for job in jobs.values() if job.spec.bundle is not None})),
    )


def _may_run(job: Job) -> bool:
    """Whether the database believes that there are processes of it."""
    return job.state not in {JobState.PENDING, JobState.PAUSED} and bool(job.allocation)


async def _stopped(tx: Transaction, job: Job, launch: Launch, message: str, at: datetime) -> Job:
    """Every process of the job has ended as asked, at the last moment that the database knows of."""
    await record(tx, job, "restored", message=message, now=at)
    crew = await crew_of(tx, job)
    for generation, rank in sorted({born(one) for one in (*crew.running, *crew.coming)}):
        ended = RankExit(rank=rank, exit_code=None, signal=None, stopped_by_agent=True, completed=False)
        await tx.history.exit(job.id, generation, ended, at)
    for generation in await tx.grants.held(job.id):
        await tx.grants.release(job.id, generation, None, {}, at)
    return await go_on(tx, replace(job, target=None), launch, at)
