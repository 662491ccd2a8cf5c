"""Requests of users about existing jobs, each on the locked row of its job.

Every function raises NotFound if there is no such job, and IllegalTransition if the job has ended or is ending.
"""

from __future__ import annotations

from datetime import datetime

from headway.contract.views.jobs import TERMINAL_STATES, Reason
from service.domain.jobs.job import Job
from service.domain.jobs.restorable import Restorable
from service.domain.life import requests
from service.domain.life.ends import Aftermath
from service.domain.life.life import Launch, Life
from service.domain.shared.errors import InvalidField
from service.usecases.identity.projects import no_project
from service.usecases.identity.secrets import check_environment
from service.usecases.jobs.life import apply, load_aftermath, load_life, load_outline
from service.usecases.ports.transactions import Transaction


async def cancel(
    tx: Transaction,
    job_id: str,
    *,
    force: bool,
    launch: Launch,
    now: datetime,
    reason: Reason = Reason.USER_REQUEST,
    message: str = "cancelled by its user",
) -> Job:
    """Stop the job for good: after a last checkpoint, or at once with `force`. A job that is or was cancelled stays so."""
    life = await _locked(tx, job_id, launch, now)
    aftermath = Aftermath() if life.loaded_footprint.held else await load_aftermath(tx, life)
    after = requests.cancel(life, aftermath, force=force, reason=reason, message=message)
    return (await apply(tx, life.job, after)).job


async def pause(
    tx: Transaction,
    job_id: str,
    *,
    launch: Launch,
    now: datetime,
    reason: Reason = Reason.USER_REQUEST,
    why: str = "its user paused the job",
) -> Job:
    """Checkpoint and stop the job, and keep it until it is resumed."""
    life = await _locked(tx, job_id, launch, now)
    return (await apply(tx, life.job, requests.pause(life, reason=reason, why=why))).job


async def resume(
    tx: Transaction,
    job_id: str,
    *,
    by: str,
    restorable: Restorable | None = None,
    launch: Launch,
    now: datetime,
) -> Job:
    """Let a job wait for slots again that is paused, or that failed or was cancelled and has a checkpoint.

    `restorable` is from `restorable_of`, called before this transaction.

    Raises:
        NameTaken: a live job has the name of the one that had ended.
        InvalidField: its project or a secret was removed meanwhile.
        ChangedMeanwhile: the job has just ended.
    """
    life = await load_outline(tx, await tx.jobs.lock(job_id), launch, now)
    after = requests.resume(life, by=by, restorable=restorable)
    spec = life.job.spec
    if life.job.state in TERMINAL_STATES:
        if not await tx.projects.exists(spec.project):
            raise InvalidField("project", no_project(spec.project))
        await check_environment(tx, spec)
    return (await apply(tx, life.job, after)).job


async def resize(
    tx: Transaction, job_id: str, slots: int | None, *, force: bool = False, launch: Launch, now: datetime
) -> Job:
    """Fix the job's size at `slots`, or (None) let the scheduler choose it again.

    With `force`, a job that has not made its first step restarts now, instead of waiting for that step.

    Raises:
        InvalidField: the spec does not allow this size.
        IllegalTransition: the job has ended, or never changes size.
    """
    life = await _locked(tx, job_id, launch, now)
    return (await apply(tx, life.job, requests.resize(life, slots, force=force))).job


async def prioritize(tx: Transaction, job_id: str, priority: int, *, launch: Launch, now: datetime) -> Job:
    """Change the job's priority from the next round on."""
    life = await load_outline(tx, await tx.jobs.lock(job_id), launch, now)
    return (await apply(tx, life.job, requests.prioritize(life, priority))).job


async def _locked(tx: Transaction, job_id: str, launch: Launch, now: datetime) -> Life:
    return await load_life(tx, await tx.jobs.lock(job_id), launch, now)
