"""Waiting jobs for which nobody is stopped, because the stop would cost more than it gains."""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.priorities import Room, by_turn, fewest
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import goodput_now, length_class
from service.domain.policies.framework.work_left import LEAST_OWN_JOBS
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


def not_worth_a_stop(
    given: RoundInput,
    soon: RoundInput,
    restart_s: FloatArray | None,
    reported_s: FloatArray | None,
    priority: FloatArray,
    smallest: IntArray,
    among: BoolArray,
    stoppable: BoolArray,
    overdue: BoolArray,
) -> tuple[BoolArray, IntArray]:
    """Return the waiting jobs (J,) that start on free slots only, and the configurations (J,) for which jobs wait.

    `stoppable` (J, J) is True where the first job may be stopped for the second one. A waiting job is marked if slots that
    others are about to leave suffice for it, or if it is brief: it would train for less time than it costs to stop jobs for it
    and start them again, from the order to stop to the next first step. A job of unknown length is brief if all ended jobs
    of its class were, and there are enough of them (`LEAST_OWN_JOBS`). A brief job that has waited for the maximum wait
    (`overdue`) is marked only if its turn would stop a job of a higher priority.

    Slots are about to be left by jobs that end sooner, by their speeds or by their own reports (`reported_s`), and by those
    that are leaving them: `soon` is the input once they have. No job of a lower priority starts on the slots that a job needs beside these.
    """
    holds = given.current != NOTHING
    none = np.zeros(len(among), dtype=np.bool_)
    coming = np.full(len(among), NOTHING, dtype=np.int64)
    if restart_s is None:
        return none, coming
    cost_s = _StopCosts(given, restart_s, priority, smallest, stoppable)
    waits = among & ~holds & (smallest != NOTHING)
    speed = given.goodput[np.arange(len(smallest)), np.maximum(smallest, 0)]
    longest_s = _longest_left_s(given, speed)
    brief = waits & (longest_s < cost_s.most)
    for job in np.flatnonzero(brief).tolist():
        brief[job] = longest_s[job] < cost_s.of(job) and (not overdue[job] or cost_s.stops_higher(job))
    left_s = _left_s(given, goodput_now(given))
    if reported_s is not None:
        left_s = np.where(np.isfinite(left_s), left_s, reported_s)
    now = _without(given, smallest, none)
    found: BoolArray = np.asarray(brief & _without_room(now, brief))
    ends_s = np.where(holds, left_s, np.inf)
    if (ends_s < cost_s.most.max(initial=0.0)).any() or soon is not given:
        line = by_turn(waits, priority, given.waited_s)
        then = _Leaving(_without(soon, smallest, none), ends_s, given.current, cost_s)
        waiting, coming = _awaiting(priority, line, brief, now, then)
        found |= waiting
    return found, coming


class _StopCosts:
    """Seconds of training that the stops for a waiting job cost, from each order to stop to the next first step.

    They are those of the fewest and lowest jobs whose slots the job needs; `most` (J,) bounds them without a search.
    """

    def __init__(
        self,
        given: RoundInput,
        restart_s: FloatArray,
        priority: FloatArray,
        smallest: IntArray,
        stoppable: BoolArray,
    ) -> None:
        self._given, self._restart_s, self._priority = given, restart_s, priority
        self._smallest, self._stoppable = smallest, stoppable
        self._holds = given.current != NOTHING
        self._stops: dict[int, list[int]] = {}
        slots = given.configurations.slots[np.maximum(smallest, 0)]
        self.most = slots * restart_s[self._holds].max(initial=0.0)

    def of(self, job: int) -> float:
        """Return the cost for a waiting job. Where no stops suffice, it is the least cost of any."""
        stopped = self._stopped_for(job)
        if stopped:
            return float(self._restart_s[stopped].sum())
        return float(self._restart_s[self._holds].min(initial=np.inf)) if self._holds.any() else 0.0

    def stops_higher(self, job: int) -> bool:
        """Return True if the stops for a waiting job include one of a higher priority."""
        return bool((self._priority[self._stopped_for(job)] > self._priority[job]).any())

    def _stopped_for(self, job: int) -> list[int]:
        if job not in self._stops:
            room = Room(self._given, self._smallest)
            for one in np.flatnonzero(self._holds).tolist():
                room.take(one, int(self._smallest[one]))
            may = self._holds & self._stoppable[:, job]
            self._stops[job] = fewest(self._given, room, job, may, self._priority, self._smallest)
        return self._stops[job]


class _Leaving:
    """Room once the jobs have ended that end before the stops for a waiting job would have paid off."""

    def __init__(self, room: Room, ends_s: FloatArray, current: IntArray, cost_s: _StopCosts) -> None:
        self._room, self._ends_s, self._current, self._cost_s = room, ends_s, current, cost_s
        self._gone: set[int] = set()

    def column_of(self, job: int) -> int:
        """Return a smallest configuration of the job that fits then, `NOTHING` if none does."""
        self._end_before(float(self._cost_s.most[job]))
        if self._room.column_of(job) == NOTHING:
            return NOTHING
        self._end_before(self._cost_s.of(job))
        return self._room.column_of(job)

    def take(self, job: int, column: int) -> None:
        """Give the job a column."""
        self._room.take(job, column)

    def _end_before(self, time_s: float) -> None:
        gone = set(np.flatnonzero(self._ends_s < time_s).tolist())
        for job in gone - self._gone:
            self._room.release(job)
        for job in self._gone - gone:
            self._room.take(job, int(self._current[job]))
        self._gone = gone


def _awaiting(
    priority: FloatArray, line: list[int], brief: BoolArray, now: Room, then: _Leaving
) -> tuple[BoolArray, IntArray]:
    """Return the jobs of a line that get nothing now, and the configurations (J,) for which jobs wait.

    The first jobs in line get the slots that are free `then`. Those that fit only then wait for them, and jobs of a
    lower priority that do not fit beside them wait too.
    """
    waiting, coming = np.zeros(len(priority), dtype=np.bool_), np.full(len(priority), NOTHING, dtype=np.int64)
    highest = -np.inf
    for job in line:
        column, free = then.column_of(job), now.column_of(job)
        if column == NOTHING:
            if highest < priority[job]:
                break
            waiting[job] = priority[job] < highest
        elif free != NOTHING:
            then.take(job, column)
            now.take(job, free)
        elif not brief[job]:
            then.take(job, column)
            waiting[job], coming[job] = True, column
            highest = max(highest, priority[job])
    return waiting, coming


def resting_jobs(priority: FloatArray, rests_s: FloatArray | None, waiting: BoolArray) -> BoolArray:
    """Return the waiting jobs (J,) that were stopped for others so recently that a start would not last.

    A job of a higher priority than another waiting job does not rest: the other one would take its place.
    """
    if rests_s is None:
        return np.zeros(len(waiting), dtype=np.bool_)
    rests = waiting & (rests_s > 0)
    lowest = priority[waiting & ~rests].min(initial=np.inf)
    return np.asarray(rests & (priority <= lowest))


def _left_s(given: RoundInput, speed: FloatArray) -> FloatArray:
    """Return the seconds to go (J,) at these speeds; infinite if unknown."""
    known = (speed > 0) & np.isfinite(given.remaining)
    return np.where(known, given.remaining / np.where(speed > 0, speed, 1.0), np.inf)


def _longest_left_s(given: RoundInput, speed: FloatArray) -> FloatArray:
    """Return the seconds to go (J,) at these speeds; for a job of unknown length, those of the longest ended job of its class.

    They are infinite for a job that has been served, and in a class with fewer than `LEAST_OWN_JOBS` ended jobs.
    """
    left_s, finished, own = _left_s(given, speed), given.finished, length_class(given)
    if finished is None or not len(finished.run_s):
        return left_s
    longest_s = np.zeros(int(max(own.max(initial=0), finished.job_class.max(initial=0))) + 1)
    known_s = np.where(finished.run_s > 0, finished.run_s, np.inf)
    np.maximum.at(longest_s, finished.job_class, known_s)
    known = np.bincount(finished.job_class, minlength=len(longest_s)) >= LEAST_OWN_JOBS
    fresh = np.isnan(given.remaining) & (given.served_slot_s <= 0) & known[own]
    return np.where(fresh, longest_s[own], left_s)


def _without(given: RoundInput, smallest: IntArray, gone: BoolArray) -> Room:
    room = Room(given, smallest)
    for job in np.flatnonzero((given.current != NOTHING) & ~gone).tolist():
        room.take(job, int(given.current[job]))
    return room


def _without_room(room: Room, among: BoolArray) -> BoolArray:
    marked = np.zeros(len(among), dtype=np.bool_)
    for job in np.flatnonzero(among).tolist():
        marked[job] = room.column_of(job) == NOTHING
    return marked
