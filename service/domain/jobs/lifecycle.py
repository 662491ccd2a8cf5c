"""State machine of a job: one transition table, and the one function that changes a job's state.

A running generation is left in one of three ways:

- RESIZING: its members change, or it is asked to stop in order to move, wait or pause.
- RECOVERING: something failed.
- CANCELLING: the job ends, at a request or at its target.

In place, the survivors take the job back to RUNNING. Otherwise none of the three ends before every process of
the job is gone. A terminal job therefore holds no slots, and a resumed one starts like a new one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.job import Job
from service.domain.shared.errors import IllegalTransition


class JobEvent(StrEnum):
    """Event that changes the state of a job."""

    RELEASE = "release"
    """The jobs that it waits for (`after`) have ended as wanted: it waits for slots from now on."""
    ALLOCATE = "allocate"
    """The scheduler grants slots and the agents start the ranks."""
    START = "start"
    """Every rank has a process."""
    PREPARE = "prepare"
    """A membership change in place begins: new ranks start while training continues."""
    SWITCH = "switch"
    """The members of the next generation train: a resize or a recovery in place is complete."""
    ABANDON = "abandon"
    """A membership change in place is cancelled before its order; training never stopped."""
    LOSE = "lose"
    """Members are lost, and the others continue without them."""
    VACATE = "vacate"
    """The running generation is asked to checkpoint and stop: resize, move, preemption or pause."""
    REQUEUE = "requeue"
    """The vacated generation is gone and no slots are granted: the job waits for a round."""
    PAUSE = "pause"
    """The job holds no slots because its user paused it."""
    RESUME = "resume"
    """A paused job waits for slots again, or one that failed or was cancelled, from its checkpoint."""
    FAIL_RANK = "fail_rank"
    """A rank or a node of the running generation failed; the other ranks are being stopped."""
    GIVE_UP = "give_up"
    """No retry is left, or a retry cannot help."""
    SUCCEED = "succeed"
    FINISH = "finish"
    """A metric has reached the target of the job; its ranks save a checkpoint and stop."""
    CANCEL = "cancel"
    VANISH = "vanish"
    """Every process of a job that is being cancelled is gone."""


_S, _E = JobState, JobEvent

TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.PENDING, _E.RELEASE): _S.PENDING,
    (_S.PENDING, _E.ALLOCATE): _S.STARTING,
    (_S.PENDING, _E.PAUSE): _S.PAUSED,
    (_S.PENDING, _E.CANCEL): _S.CANCELLED,
    (_S.STARTING, _E.START): _S.RUNNING,
    (_S.STARTING, _E.VACATE): _S.RESIZING,
    (_S.STARTING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.STARTING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.STARTING, _E.FINISH): _S.CANCELLING,
    (_S.STARTING, _E.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _E.PREPARE): _S.RESIZING,
    (_S.RUNNING, _E.LOSE): _S.RECOVERING,
    (_S.RUNNING, _E.VACATE): _S.RESIZING,
    (_S.RUNNING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RUNNING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _E.FINISH): _S.CANCELLING,
    (_S.RUNNING, _E.CANCEL): _S.CANCELLING,
    (_S.RESIZING, _E.SWITCH): _S.RUNNING,
    (_S.RESIZING, _E.ABANDON): _S.RUNNING,
    (_S.RESIZING, _E.LOSE): _S.RECOVERING,
    (_S.RESIZING, _E.ALLOCATE): _S.STARTING,
    (_S.RESIZING, _E.REQUEUE): _S.PENDING,
    (_S.RESIZING, _E.PAUSE): _S.PAUSED,
    (_S.RESIZING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RESIZING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RESIZING, _E.FINISH): _S.CANCELLING,
    (_S.RESIZING, _E.CANCEL): _S.CANCELLING,
    (_S.RECOVERING, _E.SWITCH): _S.RUNNING,
    (_S.RECOVERING, _E.LOSE): _S.RECOVERING,
    (_S.RECOVERING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RECOVERING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RECOVERING, _E.ALLOCATE): _S.STARTING,
    (_S.RECOVERING, _E.PAUSE): _S.PAUSED,
    (_S.RECOVERING, _E.GIVE_UP): _S.FAILED,
    (_S.RECOVERING, _E.FINISH): _S.CANCELLING,
    (_S.RECOVERING, _E.CANCEL): _S.CANCELLING,
    (_S.PAUSED, _E.RESUME): _S.PENDING,
    (_S.PAUSED, _E.CANCEL): _S.CANCELLED,
    (_S.CANCELLING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.CANCELLING, _E.VANISH): _S.CANCELLED,
    (_S.FAILED, _E.RESUME): _S.PENDING,
    (_S.CANCELLED, _E.RESUME): _S.PENDING,
}
"""Every legal transition. A pair that is not here is illegal."""


_WAITING = frozenset({JobState.PENDING, JobState.PAUSED})
"""States of a job that waits for the end of others."""


def allows(state: JobState, event: JobEvent) -> bool:
    """Return True if `event` may happen to a job in `state`."""
    return (state, event) in TRANSITIONS


def advance(job: Job, event: JobEvent, *, reason: Reason, message: str, now: datetime) -> Job:
    """Return the job after `event`. No other function changes a job's state.

    Raises:
        IllegalTransition: the table has no such transition.
    """
    state = TRANSITIONS.get((job.state, event))
    if state is None:
        raise IllegalTransition(_refusal(job, event))
    return replace(
        job,
        state=state,
        reason=reason,
        message=message,
        state_since=now,
        finished_at=now if state in TERMINAL_STATES else None,
        waits=job.waits and event is not JobEvent.RELEASE and state in _WAITING,
    )


def _refusal(job: Job, event: JobEvent) -> str:
    """Return the reason that `event` cannot happen to a job now, and a remedy."""
    if job.state not in TERMINAL_STATES:
        return f"job {job.name} is {job.state}: {event} is not possible now."
    ended = f"job {job.name} has already ended: it is {job.state}."
    if event is JobEvent.CANCEL:
        return f"{ended} There is nothing to cancel."
    return f"{ended} To run it again, submit it again, or from its checkpoint: headway submit FILE --from {job.name}."


def table() -> str:
    """Return the transitions as a Markdown table with a row for every state. `docs/lifecycle.md` holds
    exactly this table.
    """
    lines = ["| state | what may happen, and the state then |", "| --- | --- |"]
    for state in JobState:
        steps = [f"{event}: {target}" for (source, event), target in TRANSITIONS.items() if source is state]
        lines.append(f"| {state} | {', '.join(steps) or 'nothing'} |")
    return "\n".join(lines)
