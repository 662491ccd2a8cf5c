"""What a user asks of a job that exists: cancel, pause, resume, resize, another priority. Asking twice does no harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from headway.contract.jobs import TERMINAL_STATES, JobState, Reason
from headway.contract.spec import Resize
from service.domain.errors import IllegalTransition, InvalidField
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent, advance
from service.usecases.generations import go_on, pause_now, vacate
from service.usecases.live import give_up
from service.usecases.orders import Launch, StopMode, crew_of, stop_generation
from service.usecases.ports import Transaction
from service.usecases.records import Bell
from service.usecases.transition import record, transition

_COMPETING = frozenset(JobState) - TERMINAL_STATES - {JobState.PAUSED, JobState.CANCELLING}
"""States of a job that has slots or waits for some."""


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
    """Stop the job for good: after a last checkpoint, or at once with `force`.

    Raises:
        NotFound: no such job.
        IllegalTransition: it has ended otherwise.
    """
    job = await tx.jobs.lock(job_id)
    mode: StopMode = "kill" if force else "checkpoint"
    if job.state is JobState.CANCELLED:
        return job
    if job.state is JobState.CANCELLING:
        await stop_generation(tx, job, mode, now)
        return job
    job = await _halt_switch(tx, job, message, now, reason=reason)
    job = await transition(
        tx,
        replace(job, target=None, pause_requested=False),
        JobEvent.CANCEL,
        reason=reason,
        message=message,
        now=now,
    )
    if job.state is JobState.CANCELLED:
        return job
    if not await tx.grants.held(job.id):
        return await go_on(tx, job, launch, now)
    await stop_generation(tx, job, mode, now)
    return job


async def pause(
    tx: Transaction,
    job_id: str,
    *,
    now: datetime,
    reason: Reason = Reason.USER_REQUEST,
    why: str = "its user pauses it",
) -> Job:
    """Checkpoint, stop, and keep the job until it is resumed.

    Raises:
        NotFound: no such job.
        IllegalTransition: it is ending or has ended.
    """
    job = await tx.jobs.lock(job_id)
    if job.state is JobState.PAUSED or job.pause_requested:
        return job
    if not await tx.grants.held(job.id):
        return await pause_now(tx, job, now, reason=reason)
    switching = job.switching
    job = await _halt_switch(tx, job, why, now, reason=reason)
    asked = replace(job, pause_requested=True)
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        return await vacate(tx, asked, None, reason=reason, message="checkpoints, then pauses", now=now)
    if job.state not in {JobState.RESIZING, JobState.RECOVERING}:
        advance(job, JobEvent.PAUSE, reason=job.reason, message=job.message, now=now)  # raises
    await tx.jobs.save(asked)
    if switching is not None:
        await stop_generation(tx, asked, "checkpoint", now)
    await record(tx, asked, "pause_requested", message="pauses once its ranks have stopped", now=now)
    return asked


async def _halt_switch(tx: Transaction, job: Job, why: str, now: datetime, *, reason: Reason) -> Job:
    """The job without a change in place that is only prepared; of one that is ordered nothing more will come."""
    switch = job.switching
    if switch is None:
        return job
    if switch.ordered:
        return replace(job, switch=replace(switch, stopping=True))
    return await give_up(tx, job, reason=reason, why=why, blame=False, now=now)


async def resume(tx: Transaction, job_id: str, *, now: datetime) -> Job:
    """Let a paused job wait for slots again.

    Raises:
        NotFound: no such job.
        IllegalTransition: it is ending or has ended.
    """
    job = await tx.jobs.lock(job_id)
    if job.state in _COMPETING and not job.pause_requested:
        return job  # as when the answer to the first request was lost
    if job.pause_requested:
        job = replace(job, pause_requested=False)
        await tx.jobs.save(job)
        await record(tx, job, "pause_withdrawn", message="goes on when its ranks have stopped", now=now)
        return job
    return await transition(
        tx, job, JobEvent.RESUME, reason=Reason.USER_REQUEST, message="resumed; waits for slots", now=now
    )


async def resize(tx: Transaction, job_id: str, slots: int | None, *, now: datetime) -> Job:
    """Fix the job's size at `slots`, or let the scheduler choose again (None).

    Raises:
        NotFound: no such job.
        InvalidField: the spec does not allow this size.
        IllegalTransition: the job has ended, or never changes size.
    """
    job = await tx.jobs.lock(job_id)
    elastic = job.spec.elastic
    if job.state in TERMINAL_STATES or job.state is JobState.CANCELLING:
        raise IllegalTransition(f"job {job.name} is {job.state}: it cannot change its size any more.")
    if slots is not None and slots not in elastic.allowed_sizes():
        allowed = _sizes_text(elastic.allowed_sizes())
        raise InvalidField("slots", f"the job file allows {allowed} slots, not {slots}; see elastic.sizes")
    if elastic.resize is Resize.NEVER and job.generation > 0:
        raise IllegalTransition(f"job {job.name} has elastic.resize: never; submit it again at another size.")
    if slots == job.pinned_size:
        return job
    job = replace(await _without_other_size(tx, job, slots, now), pinned_size=slots)
    await tx.jobs.save(job)
    message = "the scheduler chooses its size again" if slots is None else f"to be {slots} slots, by request"
    await record(tx, job, "resize_requested", message=message, now=now, data={"slots": slots})
    tx.ring(Bell.ROUND)
    return job


async def prioritize(tx: Transaction, job_id: str, priority: int, *, now: datetime) -> Job:
    """Give the job another priority, which counts from the next round on.

    Raises:
        NotFound: no such job.
        IllegalTransition: the job has ended, or is about to.
    """
    job = await tx.jobs.lock(job_id)
    if job.state in TERMINAL_STATES or job.state is JobState.CANCELLING:
        raise IllegalTransition(f"job {job.name} is {job.state}: its priority does not count any more.")
    before = job.spec.priority
    if priority == before:
        return job
    job = replace(job, spec=job.spec.model_copy(update={"priority": priority}))
    await tx.jobs.save_priority(job)
    message = f"its priority is {priority} instead of {before}, by request"
    data = {"from": before, "to": priority}
    await record(tx, job, "priority_changed", message=message, now=now, data=data)
    tx.ring(Bell.ROUND)
    return job


async def _without_other_size(tx: Transaction, job: Job, slots: int | None, now: datetime) -> Job:
    """The job without a change in place that is only prepared, and to another size than the one that is wanted."""
    switch = job.switching
    if slots is None or switch is None or switch.ordered:
        return job
    if len((await crew_of(tx, job)).coming) == slots:
        return job
    why = f"its user wants {slots} slots"
    return await give_up(tx, job, reason=Reason.USER_REQUEST, why=why, blame=False, now=now)


def _sizes_text(sizes: tuple[int, ...]) -> str:
    contiguous = len(sizes) > 2 and sizes == tuple(range(sizes[0], sizes[-1] + 1))
    return f"{sizes[0]} to {sizes[-1]}" if contiguous else ", ".join(map(str, sizes))
