"""Restoration after the database was recovered from a backup or lost its tail, while the cluster has moved on.

The database does not know what agents run, which commands are in transit, and which generations were assigned
since the backup. Therefore all jobs that it believes to run are treated as stopped on request. All numbers
assigned from now on are higher than any assigned before. No node gets a job until its agent has reported that
it runs nothing unknown. Jobs start again from their last checkpoints, which are newer than the backup if
storage is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.views.jobs import JobState
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Job
from service.domain.jobs.membership import born
from service.domain.life.ends import go_on
from service.domain.life.life import Launch
from service.usecases.jobs.life import apply, load_aftermath, load_life
from service.usecases.ports.transactions import Transaction

GENERATIONS_LEFT_OUT = 1_000_000
"""Gap that a restore leaves in a job's generation numbers. It exceeds the number of generations that the job
can have had since the backup: this many membership changes take days.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore. Time between `known_until` and `at` is not billed."""

    known_until: datetime
    at: datetime
    stopped: int
    """Number of jobs that were believed to run and start again."""
    waiting: int
    nodes: int
    bundles: tuple[str, ...]
    """Digests of bundles that jobs which have not ended refer to."""


async def bring_back(
    tx: Transaction,
    launch: Launch,
    now: datetime,
    *,
    terms_left_out: int = GENERATIONS_LEFT_OUT,
    message: str = "",
    as_of: datetime | None = None,
) -> Restored:
    """Detach the restored database from the former state of the cluster.

    A repetition is safe, and costs the jobs another start.

    Args:
        tx: the transaction; the caller commits it.
        launch: the parameters of starts.
        now: the time of the restoration.
        terms_left_out: gap in the terms of leaders, which ends the present term; 0 in a transaction of the leader.
        message: the reason for events and nodes; empty: the restoration of a backup.
        as_of: the moment to whose state the database went back, for the diagnosis; None: the latest that it has recorded.
    """
    known_until = await tx.operations.known_until() or now
    message = message or f"the database was restored as of {known_until:%Y-%m-%d %H:%M:%S} UTC"
    nodes = await tx.operations.disconnect_nodes(f"{message}; waiting for its agent", terms_left_out)
    jobs = await tx.jobs.lock_many(sorted(await tx.operations.unended_jobs()))
    stopped = 0
    for job in jobs.values():
        if job.state not in {JobState.PENDING, JobState.PAUSED} and job.allocation:  # it may have processes
            stopped += 1
            job = await _stopped(tx, job, launch, message, known_until)  # noqa: PLW2901
        if job.finished_at is None:
            newest = job.newest_generation + GENERATIONS_LEFT_OUT
            await tx.jobs.save(replace(job, newest_generation=newest))
    await tx.operations.restored(as_of or known_until, now)
    return Restored(
        known_until=known_until,
        at=now,
        stopped=stopped,
        waiting=len(jobs) - stopped,
        nodes=nodes,
        bundles=tuple(sorted({job.spec.bundle for job in jobs.values() if job.spec.bundle is not None})),
    )


async def _stopped(tx: Transaction, job: Job, launch: Launch, message: str, at: datetime) -> Job:
    """End every process of the job as if stopped on request, at the last moment that the database knows of."""
    life = (await load_life(tx, job, launch, at)).noted("restored", message=message)
    crew = life.crew
    for generation, rank in sorted({born(one) for one in (*crew.running, *crew.coming)}):
        ended = RankExit(rank=rank, exit_code=None, signal=None, stopped_by_agent=True, completed=False)
        life = life.with_exit(generation, ended)
    for generation in tuple(life.loaded_footprint.held):
        life = life.released(generation)
    life = life.with_job(replace(life.job, target=None))
    return (await apply(tx, job, go_on(life, await load_aftermath(tx, life)))).job
