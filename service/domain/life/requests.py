"""Requests of users about existing jobs: cancel, pause, resume, resize, change the priority.

All are idempotent.
"""

from __future__ import annotations

from dataclasses import replace

from headway.contract.spec import Resize
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.cluster.pools import slots_of
from service.domain.jobs.first_step import is_before_first_step
from service.domain.jobs.job import size_of
from service.domain.jobs.lifecycle import JobEvent, advance, allows
from service.domain.jobs.restorable import Restorable, at_text
from service.domain.jobs.resumption import stop_text
from service.domain.life.change_reasons import change_reason
from service.domain.life.changes import give_up, halt_switch
from service.domain.life.commands import StopMode, stop_generation
from service.domain.life.effects import CallRound
from service.domain.life.ends import Aftermath, go_on, pause_now
from service.domain.life.life import Life
from service.domain.life.starts import vacate
from service.domain.shared.errors import ChangedMeanwhile, IllegalTransition, InvalidField

_COMPETING = frozenset(JobState) - TERMINAL_STATES - {JobState.PAUSED, JobState.CANCELLING}
"""States of a job that holds slots or waits for some."""


def cancel(life: Life, aftermath: Aftermath, *, force: bool, reason: Reason, message: str) -> Life:
    """Stop the job for good: after a last checkpoint, or at once with `force`.

    Raises:
        IllegalTransition: the job has ended in another way.
    """
    mode: StopMode = "kill" if force else "checkpoint"
    if life.job.state is JobState.CANCELLED:
        return life
    if life.job.state is JobState.CANCELLING:
        return stop_generation(life, mode)
    life = halt_switch(life, message, reason=reason)
    life = life.with_job(replace(life.job, target=None, target_batch=None, pause_requested=False))
    life = life.advanced(JobEvent.CANCEL, reason=reason, message=message)
    if life.job.state is JobState.CANCELLED:
        return life
    return stop_generation(life, mode) if life.loaded_footprint.held else go_on(life, aftermath)


def pause(life: Life, *, reason: Reason, why: str) -> Life:
    """Checkpoint and stop the job, and keep it until it is resumed.

    Raises:
        IllegalTransition: the job is ending or has ended.
    """
    job = life.job
    if job.state is JobState.PAUSED or job.pause_requested:
        return life
    if not life.loaded_footprint.held:
        return pause_now(life, reason=reason)
    switching = job.switching
    life = halt_switch(life, why, reason=reason)
    job = life.job
    life = life.with_job(replace(job, pause_requested=True))
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        return vacate(life, None, reason=reason, message=f"{stop_text(job)}; then pauses")
    if job.state not in {JobState.RESIZING, JobState.RECOVERING}:
        advance(job, JobEvent.PAUSE, reason=job.reason, message=job.message, now=life.now)  # raises
    if switching is not None:
        life = stop_generation(life, "checkpoint", why=change_reason(reason, why))
    return life.noted("pause_requested", message="pauses once its ranks have stopped")


def resume(life: Life, *, by: str, restorable: Restorable | None = None) -> Life:
    """Let a job wait for slots again that is paused, or that failed or was cancelled and has a checkpoint.

    `by` is the name of the user. `restorable` is the checkpoint of a job that has ended; None: it was not looked for.

    Raises:
        IllegalTransition: the job is ending, has succeeded, or has no complete checkpoint.
        ChangedMeanwhile: the job has ended since its checkpoint could be looked for.
    """
    job = life.job
    if job.state in TERMINAL_STATES:
        return _revive(life, by, restorable)
    if job.state in _COMPETING and not job.pause_requested:
        return life  # the answer to the first request may have been lost
    if job.pause_requested:
        life = life.with_job(replace(job, pause_requested=False))
        return life.noted("pause_withdrawn", message="continues once its ranks have stopped")
    waits = "the jobs in its after" if job.waits else "slots"
    return life.advanced(JobEvent.RESUME, reason=Reason.USER_REQUEST, message=f"resumed; waits for {waits}")


def _revive(life: Life, by: str, restorable: Restorable | None) -> Life:
    """Let a job that failed or was cancelled continue from its checkpoint, with a fresh retry budget."""
    job = life.job
    if not allows(job.state, JobEvent.RESUME):
        return life.advanced(JobEvent.RESUME, reason=job.reason, message=job.message)  # raises
    if job.reason is Reason.BUDGET:
        raise IllegalTransition(
            f"job {job.name} is {job.state}: its goal.on_budget ended it for good. To go on with another limit, start a "
            f"new job from its checkpoint: headway submit FILE --from {job.name}."
        )
    if restorable is None:
        raise ChangedMeanwhile(f"job {job.name} has just ended: it is {job.state}. Repeat the request.")
    found = restorable.checkpoint
    if found is None:
        raise IllegalTransition(
            f"job {job.name} is {job.state}, and has no complete checkpoint to continue from. {restorable.note} To run it "
            "again from its beginning, submit it again."
        )
    before = {"state": job.state, "reason": job.reason, "message": job.message}
    job = replace(
        job,
        pause_requested=False,
        infrastructure_failures=0,
        user_errors=0,
        failures=(),
        retry_at=None,
        samples_at_loss=None,
        growth_failures=0,
        grow_after=None,
    )
    message = f"resumed by {by} from {at_text(found)}; waits for slots"
    data = {"by": by, "checkpoint": found.name, "samples": found.samples, "before": before}
    return life.with_job(job).advanced(
        JobEvent.RESUME, reason=Reason.USER_REQUEST, message=message, data=data
    )


def resize(life: Life, slots: int | None, *, force: bool = False) -> Life:
    """Fix the job's size at `slots`, or (None) let the scheduler choose it again.

    Before the first step of its ranks, the job keeps its slots until that step, and then changes in place if
    it can. With `force` it stops at once, and waits for slots of the new size.

    Raises:
        InvalidField: the spec does not allow this size.
        IllegalTransition: the job has ended, or never changes size.
    """
    job, elastic = life.job, life.job.spec.elastic
    if job.state in TERMINAL_STATES or job.state is JobState.CANCELLING:
        raise IllegalTransition(f"job {job.name} is {job.state}: it cannot change its size any more.")
    if slots is not None and slots not in job.spec.allowed_sizes():
        allowed = _sizes_text(job.spec.allowed_sizes())
        raise InvalidField(
            "slots",
            f"the job file allows {allowed} slots, not {slots} (elastic.min, max and sizes, parallel)",
        )
    if elastic.resize is Resize.NEVER and job.generation > 0:
        raise IllegalTransition(f"job {job.name} has elastic.resize: never; submit it again at another size.")
    waits = is_before_first_step(job) and slots is not None and slots != size_of(job.allocation)
    stops = force and waits
    if slots == job.pinned_size and not stops:
        return life
    life = _without_other_size(life, slots)
    life = life.with_job(replace(life.job, pinned_size=slots))
    message = (
        "the scheduler chooses its size again"
        if slots is None
        else f"size fixed at {slots_of(slots, None)} by request"
    )
    if stops:
        message = f"{message}; restarts before its first step"
    elif waits:
        message = f"{message}; changes after its first step"
    life = life.noted("resize_requested", message=message, data={"slots": slots}).having(CallRound())
    return vacate(life, None, reason=Reason.USER_REQUEST, message=message) if stops else life


def prioritize(life: Life, priority: int) -> Life:
    """Change the job's priority from the next round on.

    Raises:
        IllegalTransition: the job has ended, or is about to.
    """
    job = life.job
    if job.state in TERMINAL_STATES or job.state is JobState.CANCELLING:
        raise IllegalTransition(f"job {job.name} is {job.state}: its priority has no effect any more.")
    before = job.spec.priority
    if priority == before:
        return life
    spec = job.spec.model_copy(update={"priority": priority})
    message = f"priority changed from {before} to {priority} by request"
    life = life.with_job(replace(job, spec=spec))
    data = {"from": before, "to": priority}
    return life.noted("priority_changed", message=message, data=data).having(CallRound())


def _without_other_size(life: Life, slots: int | None) -> Life:
    """Cancel a change in place that is only prepared and leads to another size than `slots`."""
    switch = life.job.switching
    if slots is None or switch is None or switch.ordered or len(life.crew.coming) == slots:
        return life
    why = f"its user requested {slots_of(slots, None)}"
    return give_up(life, reason=Reason.USER_REQUEST, why=why, blame=False)


def _sizes_text(sizes: tuple[int, ...]) -> str:
    contiguous = len(sizes) > 2 and sizes == tuple(range(sizes[0], sizes[-1] + 1))
    return f"{sizes[0]} to {sizes[-1]}" if contiguous else ", ".join(map(str, sizes))
