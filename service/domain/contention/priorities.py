"""Priorities while the minimums of all jobs do not fit: who takes slots from whom, and whose protection ends.

- Protection of a running job is lifted only where a waiting job of a higher priority takes its slots in this decision:
  from the lowest jobs first, protected or not, from no more of them than needed, and from small ones where they suffice.
- Jobs of the highest priorities have seats. Among the jobs of the first priority that does not fit as a whole, the policy
  chooses. Jobs of a lower priority get what those leave.
"""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_ROUNDING = 1e-9


def by_turn(among: BoolArray, priority: FloatArray, waited_s: FloatArray) -> list[int]:
    """Return the marked jobs (J,) in the order of their turns: by priority, then by the longest wait, then by submission."""
    order = np.flatnonzero(among)
    turns: list[int] = order[np.lexsort((-waited_s[order], -priority[order]))].tolist()
    return turns


class Room:
    """Capacity of the rows beside the smallest configurations of jobs, as they are added one by one."""

    def __init__(self, given: RoundInput, smallest: IntArray) -> None:
        self._given = given
        self._smallest = smallest
        self._columns: dict[int, int] = {}
        self._demand = np.array([row.demand for row in given.rows], dtype=np.float64)
        self._counts = np.array(
            [np.ones(len(smallest), dtype=np.bool_) if row.jobs is None else row.jobs for row in given.rows]
        )
        self._left = np.array([row.capacity for row in given.rows], dtype=np.float64)

    def column_of(self, job: int) -> int:
        """Return a smallest configuration of the job that fits now, `NOTHING` if none does."""
        first = int(self._smallest[job])
        if first == NOTHING or self._fits(job, first):
            return first
        given, slots = self._given, self._given.configurations.slots
        alike = given.allowed[job] & (given.goodput[job] > 0) & (slots == slots[first])
        return next((column for column in np.flatnonzero(alike).tolist() if self._fits(job, column)), NOTHING)

    def take(self, job: int, column: int) -> None:
        """Give the job a column; `NOTHING` is allowed and takes nothing."""
        if column != NOTHING:
            self._columns[job] = column
            self._left -= np.where(self._counts[:, job], self._demand[:, column], 0.0)

    def release(self, job: int) -> None:
        """Take the column of a job away."""
        column = self._columns.pop(job, NOTHING)
        if column != NOTHING:
            self._left += np.where(self._counts[:, job], self._demand[:, column], 0.0)

    def _fits(self, job: int, column: int) -> bool:
        within = self._demand[:, column] <= self._left + _ROUNDING
        return bool((within | ~self._counts[:, job]).all())


def lifted(
    given: RoundInput,
    protected: BoolArray,
    priority: FloatArray,
    smallest: IntArray,
    *,
    among: BoolArray,
    submitted_since: BoolArray,
) -> BoolArray:
    """Return the protected jobs (J,) whose slots a waiting job of a higher priority takes now.

    Args:
        given: input of the round.
        protected: (J,) running jobs that may not be vacated for another job's gain.
        priority: (J,) priorities.
        smallest: (J,) smallest configurations.
        among: (J,) jobs that may have slots.
        submitted_since: (J, J) True where the second job was submitted after the turn of the first one began, or the
            turn of the first one is over.
    """
    off = np.zeros(len(smallest), dtype=np.bool_)
    holds = given.current != NOTHING
    room = Room(given, smallest)
    stays = holds & (protected | among)
    for job in by_turn(stays, priority + np.where(protected, priority.max(initial=0.0), 0.0), given.waited_s):
        room.take(job, room.column_of(job))
    for job in by_turn(~holds & among, priority, given.waited_s):
        lower = stays & (priority < priority[job])
        if not (lower & protected).any():
            break
        if room.column_of(job) == NOTHING:
            yielding = fewest(
                given, room, job, lower & (submitted_since[:, job] | ~protected), priority, smallest
            )
            stays[yielding] = False
            off[yielding] = protected[yielding]
        room.take(job, room.column_of(job))
    return off


def fewest(
    given: RoundInput, room: Room, job: int, lower: BoolArray, priority: FloatArray, smallest: IntArray
) -> list[int]:
    """Release the lowest and fewest jobs that make room for the job, and return them; none if all do not suffice.

    Of equally many the ones with the fewest slots are released.
    """
    slots = given.configurations.slots
    order = np.flatnonzero(lower & (smallest != NOTHING))
    order = order[np.lexsort((-slots[smallest[order]], priority[order]))]
    released: list[int] = []
    for one in order.tolist():
        room.release(one)
        released.append(one)
        if room.column_of(job) != NOTHING:
            break
    else:
        for one in released:
            room.take(one, int(smallest[one]))
        return []
    for one in reversed(released.copy()):
        room.take(one, int(smallest[one]))
        if room.column_of(job) == NOTHING:
            room.release(one)
        else:
            released.remove(one)
    least = slots[smallest]
    order = order[np.lexsort((least[order], priority[order]))]
    for at, one in enumerate(released):
        fewer = (least[order] < least[one]) & (priority[order] <= priority[one])
        for other in order[fewer & ~np.isin(order, released)].tolist():
            if _trades(room, job, one, other, smallest):
                released[at] = other
                break
    return released


def _trades(room: Room, job: int, one: int, other: int, smallest: IntArray) -> bool:
    """Release another job instead of `one` and return True, if that makes room for the job as well."""
    room.release(other)
    room.take(one, int(smallest[one]))
    if room.column_of(job) != NOTHING:
        return True
    room.release(one)
    room.take(other, int(smallest[other]))
    return False


def by_priority(
    given: RoundInput, priority: FloatArray, smallest: IntArray, seats: IntArray, *, among: BoolArray
) -> tuple[IntArray, BoolArray]:
    """Return seats (J,) with those of the highest priorities added, and the jobs (J,) that must leave room for higher ones."""
    seats = seats.copy()
    barred = np.zeros(len(seats), dtype=np.bool_)
    levels = np.unique(priority[among & (smallest != NOTHING)])[::-1]
    if len(levels) < 2:
        return seats, barred
    room = Room(given, smallest)
    for job in np.flatnonzero(seats != NOTHING).tolist():
        room.take(job, int(seats[job]))
    holds = given.current != NOTHING
    open_level = False
    for level in levels.tolist():
        members = np.flatnonzero(
            among & (priority == level) & (seats == NOTHING) & (smallest != NOTHING) & ~barred
        )
        members = members[np.lexsort((-given.waited_s[members], ~holds[members]))]
        found = {}
        for job in members.tolist():
            found[job] = room.column_of(job)
            room.take(job, found[job])
        missing = [job for job, column in found.items() if column == NOTHING]
        if open_level:
            barred[missing] = True
        elif missing:
            open_level = True
        else:
            seats[list(found)] = list(found.values())
    return seats, barred
