"""Sweeps: submit all trials at once, and change them at once."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from random import Random

from headway.contract.spec_sweep import SweepSpec
from headway.contract.views.sweeps import SweepView
from service.domain.identity.access import Principal
from service.domain.jobs.job import Job
from service.domain.jobs.sweeps import GroupRequest, takes, trials_of
from service.domain.life.life import Launch
from service.domain.shared.errors import IdempotencyConflict
from service.usecases.jobs import control
from service.usecases.jobs.submit import check, store
from service.usecases.ports.facts import BegunTrace
from service.usecases.ports.sweeps import NewSweep, SubmittedSweep
from service.usecases.ports.transactions import Transaction


async def submit_sweep(
    tx: Transaction,
    spec: SweepSpec,
    *,
    caller: Principal,
    sweep_id: str,
    new_job_id: Callable[[], str],
    begin_trace: Callable[[str], BegunTrace | None],
    idempotency_key: str | None,
    now: datetime,
) -> SubmittedSweep:
    """Store the sweep with all its trials, or return the one stored before under the same idempotency key.

    Raises:
        InvalidField, NameTaken, DeadlineRefused: as `submit`, of any trial; nothing is stored then.
        IdempotencyConflict: the key was used for another sweep.
    """
    digest = hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()
    if idempotency_key is not None:
        before = await tx.sweeps.submitted_before(spec.project, idempotency_key)
        if before is not None:  # a job that its trials wait for may be gone since
            return _of_this_request(before, digest, idempotency_key)
    predecessors = await check(tx, spec, caller)
    new = NewSweep(
        id=sweep_id,
        project=spec.project,
        name=spec.name,
        sweep=spec.sweep,
        owner=caller.name,
        submitted_at=now,
    )
    stored = await tx.sweeps.insert(new, idempotency_key=idempotency_key, request_digest=digest)
    if not stored.created:
        return _of_this_request(stored, digest, idempotency_key)
    trials = trials_of(spec, Random(spec.sweep.seed or 0).random)
    # A round takes the smallest id of equal jobs first, so trials start in the order of their numbers.
    job_ids = sorted(new_job_id() for _ in trials)
    for job_id, trial in zip(job_ids, trials, strict=True):
        await store(
            tx,
            trial,
            predecessors,
            caller=caller,
            job_id=job_id,
            idempotency_key=None,
            now=now,
            trace=begin_trace(job_id),
            alone=False,
        )
    await tx.sweeps.add_trials(sweep_id, job_ids)
    return stored


def _of_this_request(stored: SubmittedSweep, digest: str, idempotency_key: str | None) -> SubmittedSweep:
    if stored.request_digest != digest:
        raise IdempotencyConflict(
            f"Idempotency-Key {idempotency_key!r} was used for a different sweep ({stored.name}); use a new key for a new "
            "request."
        )
    return stored


async def cancel(tx: Transaction, sweep_id: str, *, force: bool, launch: Launch, now: datetime) -> SweepView:
    """Stop every trial that has not ended for good: after a last checkpoint, or at once with `force`."""
    message = "cancelled with its sweep"
    action = partial(control.cancel, force=force, message=message, launch=launch, now=now)
    return await _each(tx, sweep_id, GroupRequest.CANCEL, action)


async def pause(tx: Transaction, sweep_id: str, *, launch: Launch, now: datetime) -> SweepView:
    """Checkpoint and stop every trial that has not ended, and keep it until it is resumed."""
    action = partial(control.pause, why="its user paused the sweep", launch=launch, now=now)
    return await _each(tx, sweep_id, GroupRequest.PAUSE, action)


async def resume(tx: Transaction, sweep_id: str, *, by: str, launch: Launch, now: datetime) -> SweepView:
    """Let every paused trial wait for slots again."""
    action = partial(control.resume, by=by, launch=launch, now=now)
    return await _each(tx, sweep_id, GroupRequest.RESUME, action)


async def prioritize(
    tx: Transaction, sweep_id: str, priority: int, *, launch: Launch, now: datetime
) -> SweepView:
    """Change the priority of every trial that has not ended, from the next round on."""
    action = partial(control.prioritize, priority=priority, launch=launch, now=now)
    return await _each(tx, sweep_id, GroupRequest.PRIORITISE, action)


async def _each(
    tx: Transaction, sweep_id: str, request: GroupRequest, action: Callable[..., Awaitable[Job]]
) -> SweepView:
    """Apply an action to every trial that the request changes, all or none, and return the sweep as it is then."""
    job_ids: Sequence[str] = await tx.sweeps.jobs_of(sweep_id)
    for job in (await tx.jobs.lock_many(job_ids)).values():
        if takes(job, request):
            await action(tx, job.id)
    return await tx.sweep_queries.sweep(sweep_id)
