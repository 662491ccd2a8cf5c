"""The life of a job: one table, and the one function that changes a job's state.

A generation that runs is left in one of three ways: RESIZING (its members change, or it is asked to stop, to go
on elsewhere, to wait or to pause), RECOVERING (something failed) or CANCELLING. In place, the survivors take the job
back to RUNNING; otherwise none of the three ends before every process of the job is gone, so a job that is terminal
holds nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from headway.contract.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.errors import IllegalTransition
from service.domain.jobs import Job


class JobEvent(StrEnum):
    """What can happen to a job."""

    ALLOCATE = "allocate"
    """Slots are granted and its ranks are being started."""
    START = "start"
    """Every rank has a process."""
    PREPARE = "prepare"
    """Members are to change in place: newcomers are being started, and training goes on meanwhile."""
    SWITCH = "switch"
    """The members of the next generation train: a resize or a recovery in place is complete."""
    ABANDON = "abandon"
    """A change in place is given up before it was ordered; training never stopped."""
    LOSE = "lose"
    """Members were lost, and the others go on without them."""
    VACATE = "vacate"
    """The running generation is asked to checkpoint and stop: resize, move, preemption, pause."""
    REQUEUE = "requeue"
    """The vacated generation is gone and nothing is granted: wait for a round."""
    PAUSE = "pause"
    """The job holds nothing, and its user wants it so."""
    RESUME = "resume"
    FAIL_RANK = "fail_rank"
    """A rank or a node of the running generation failed; the rest is being stopped."""
    GIVE_UP = "give_up"
    """No retry is left, or a retry cannot help."""
    SUCCEED = "succeed"
    CANCEL = "cancel"
    VANISH = "vanish"
    """Every process of a job that is being cancelled is gone."""


_S, _E = JobState, JobEvent

TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.PENDING, _E.ALLOCATE): _S.STARTING,
    (_S.PENDING, _E.PAUSE): _S.PAUSED,
    (_S.PENDING, _E.CANCEL): _S.CANCELLED,
    (_S.STARTING, _E.START): _S.RUNNING,
    (_S.STARTING, _E.VACATE): _S.RESIZING,
    (_S.STARTING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.STARTING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.STARTING, _E.CANCEL): _S.CANCELLING,
    (_S.RUNNING, _E.PREPARE): _S.RESIZING,
    (_S.RUNNING, _E.LOSE): _S.RECOVERING,
    (_S.RUNNING, _E.VACATE): _S.RESIZING,
    (_S.RUNNING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RUNNING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _E.CANCEL): _S.CANCELLING,
    (_S.RESIZING, _E.SWITCH): _S.RUNNING,
    (_S.RESIZING, _E.ABANDON): _S.RUNNING,
    (_S.RESIZING, _E.LOSE): _S.RECOVERING,
    (_S.RESIZING, _E.ALLOCATE): _S.STARTING,
    (_S.RESIZING, _E.REQUEUE): _S.PENDING,
    (_S.RESIZING, _E.PAUSE): _S.PAUSED,
    (_S.RESIZING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RESIZING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RESIZING, _E.CANCEL): _S.CANCELLING,
    (_S.RECOVERING, _E.SWITCH): _S.RUNNING,
    (_S.RECOVERING, _E.LOSE): _S.RECOVERING,
    (_S.RECOVERING, _E.FAIL_RANK): _S.RECOVERING,
    (_S.RECOVERING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RECOVERING, _E.ALLOCATE): _S.STARTING,
    (_S.RECOVERING, _E.PAUSE): _S.PAUSED,
    (_S.RECOVERING, _E.GIVE_UP): _S.FAILED,
    (_S.RECOVERING, _E.CANCEL): _S.CANCELLING,
    (_S.PAUSED, _E.RESUME): _S.PENDING,
    (_S.PAUSED, _E.CANCEL): _S.CANCELLED,
    (_S.CANCELLING, _E.VANISH): _S.CANCELLED,
}
"""Every legal edge. An empty cell is an illegal transition."""

OCCUPYING_STATES = frozenset({_S.STARTING, _S.RUNNING, _S.RESIZING, _S.RECOVERING, _S.CANCELLING})
"""States in which a job may hold slots."""


def allows(state: JobState, event: JobEvent) -> bool:
    """Whether `event` may happen to a job in `state`."""
    return (state, event) in TRANSITIONS


def advance(job: Job, event: JobEvent, *, reason: Reason, message: str, now: datetime) -> Job:
    """The job after `event`. The only place where a job's state changes.

    Raises:
        IllegalTransition: the table has no such edge.
    """
    state = TRANSITIONS.get((job.state, event))
    if state is None:
        raise IllegalTransition(
            f"job {job.name} is {job.state}: {event} is not possible now."
            + (" It has ended; submit it again." if job.state in TERMINAL_STATES else "")
        )
    return replace(
        job,
        state=state,
        reason=reason,
        message=message,
        state_since=now,
        finished_at=now if state in TERMINAL_STATES else None,
    )


def table() -> str:
    """The table as a table of Markdown: a row for every state; `docs/lifecycle.md` holds exactly this."""
    lines = ["| state | what may happen, and the state then |", "| --- | --- |"]
    for state in JobState:
        steps = [f"{event}: {target}" for (source, event), target in TRANSITIONS.items() if source is state]
        lines.append(f"| {state} | {', '.join(steps) or 'nothing'} |")
    return "\n".join(lines)
