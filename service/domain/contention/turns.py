"""Turns after the maximum wait: which waiting jobs take slots of running ones now, and which wait for a turn to end.

A turn takes slots of jobs of the same or a lower priority first, and waits for the end of their minimum run time rather than
stop a job of a higher priority. It stops such a job only if that job has run, beside the wait, for at least as long as the
turn lasts. So a job of a higher priority never runs less than the one that it makes room for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.priorities import Room, by_turn, fewest
from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Rights of overdue jobs over running ones.

    Attributes:
        may_stop: (J, J) True where the turn of the second job may stop the first one once that is past its minimum run time.
        may_wait_for: (J, J) True where the turn of the second job may stop the first one as soon as that has run for long enough.
    """

    may_stop: BoolArray
    may_wait_for: BoolArray


def turns_of(priority: FloatArray, run_s: FloatArray, waited_s: FloatArray, min_run_s: FloatArray) -> Turns:
    """Return the rights of turns over running jobs: none over a higher priority that has run for less than a turn lasts.

    Args:
        priority: (J,) priorities.
        run_s: (J,) seconds since the present run began.
        waited_s: (J,) seconds for which a job has waited.
        min_run_s: (J,) minimum run times in seconds. A turn counts as the longer one of both jobs: the one that waits may
            not have started before, so its cost is unknown.
    """
    turn_s = np.maximum(min_run_s[:, None], min_run_s[None, :])
    not_higher = priority[:, None] <= priority[None, :]
    waited = waited_s[None, :] >= turn_s
    return Turns(
        may_stop=not_higher | (waited & (run_s[:, None] >= turn_s)), may_wait_for=not_higher | waited
    )


def turns_now(
    given: RoundInput,
    smallest: IntArray,
    priority: FloatArray,
    overdue: BoolArray,
    rights: Turns,
    *,
    first: BoolArray,
    firm: BoolArray,
    fixed: BoolArray,
) -> tuple[BoolArray, BoolArray]:
    """Return the overdue jobs (J,) whose turns begin now, and these with those that slots are kept for.

    Slots are kept for a job until the minimum run times of others are over.

    The others have no turn yet, because jobs of higher priorities hold the slots that they need. A turn that no such job is
    in the way of begins as soon as it has a seat.

    Args:
        given: input of the round.
        smallest: (J,) smallest configurations.
        priority: (J,) priorities.
        overdue: (J,) jobs that have waited for the maximum wait.
        rights: rights of the overdue jobs over the running ones.
        first: (J,) waiting jobs that precede them, on promised slots.
        firm: (J,) running jobs that may not be vacated now.
        fixed: (J,) running jobs that keep their slots after their minimum run time.
    """
    now, later = np.zeros_like(overdue), np.zeros_like(overdue)
    stays = given.current != NOTHING
    room = Room(given, smallest)
    for job in np.flatnonzero(stays | first).tolist():
        room.take(job, int(smallest[job]))
    for job in by_turn(overdue, priority, given.waited_s):
        higher = priority > priority[job]
        if room.column_of(job) == NOTHING:
            among = stays & ~firm
            yielding = fewest(given, room, job, among & ~higher, priority, smallest)
            if not yielding and (stays & higher).any():
                own = stays & ~fixed & ~higher
                if not _would_fit(given, room, job, own, priority, smallest):
                    among &= rights.may_stop[:, job]
                    yielding = fewest(given, room, job, among, priority, smallest)
                if not yielding:
                    own |= stays & ~fixed & rights.may_wait_for[:, job]
                    later[job] = _would_fit(given, room, job, own, priority, smallest)
                    continue
            stays[yielding] = False
        room.take(job, room.column_of(job))
        now[job] = True
    return now, now | later


def _would_fit(
    given: RoundInput, room: Room, job: int, may: BoolArray, priority: FloatArray, smallest: IntArray
) -> bool:
    """Return True if a job would fit without some of the marked jobs (J,), which keep their slots."""
    released = fewest(given, room, job, may, priority, smallest)
    for one in released:
        room.take(one, int(smallest[one]))
    return bool(released)
