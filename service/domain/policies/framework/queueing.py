"""Rigid scheduling: every job at its requested size, one after the other in a policy's order."""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row, Solution
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.speedup import kept, usable_goodput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_ROUNDING = 1e-9
"""Relative tolerance of a capacity for the rounding errors of sums of demands."""
_UNLIMITED = 1e300
"""Capacity that stands for an infinite one, so that an infinite demand still does not fit."""


def requested_columns(given: RoundInput) -> BoolArray:
    """Return the configurations (J, C) of the size that a rigid scheduler gives each job.

    That is the largest usable size up to the requested one, or the smallest usable size beyond it.
    """
    usable = usable_goodput(given) > 0
    slots = given.configurations.slots[None, :]
    within = np.where(usable & (slots <= given.requested_slots[:, None]), slots, 0).max(axis=1, initial=0)
    beyond = np.where(usable, slots, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    size = np.where(within > 0, within, beyond)
    return np.asarray(usable & (slots == size[:, None]))


def requested_goodput(given: RoundInput) -> FloatArray:
    """Return the goodput (J, C) of the configurations that a rigid scheduler may give.

    These are the requested configurations and those that firm jobs hold.
    """
    offered = requested_columns(given)
    if given.firm is not None:
        offered |= given.firm[:, None] & kept(given)
    return np.where(offered, usable_goodput(given), 0.0)


def turns_first(given: RoundInput, order: IntArray) -> IntArray:
    """Return the order (J,) with firm jobs first, then jobs whose turn is next, then other jobs with a seat, then all
    others (`contention.guaranteed_jobs`).

    The seats are of the smallest sizes. At the requested ones fewer jobs may fit, and one of them would never have its turn.
    """
    if given.seats is None or given.firm is None:
        return order
    turn = np.where(given.firm, 0, np.where(given.seats != NOTHING, 2, 3))
    following = np.zeros_like(turn) if given.next_turn is None else given.next_turn
    turn[(following > 0) & ~given.firm] = 1
    return np.asarray(order[np.lexsort((-following[order], turn[order]))])


class Capacity:
    """Remaining capacity of the rows while jobs are served one by one."""

    def __init__(self, rows: tuple[Row, ...], jobs: int, columns: int) -> None:
        self._demand = np.zeros((len(rows), columns))
        self._counts = np.ones((len(rows), jobs), dtype=np.bool_)
        self._left = np.zeros(len(rows))
        for index, row in enumerate(rows):
            self._demand[index] = np.where(np.isfinite(row.demand), np.maximum(row.demand, 0.0), np.inf)
            if row.jobs is not None:
                self._counts[index] = row.jobs
            capacity = 0.0 if np.isnan(row.capacity) else min(max(row.capacity, 0.0), _UNLIMITED)
            self._left[index] = capacity * (1 + _ROUNDING) + _ROUNDING
        self._shared = np.array([row.jobs is None for row in rows], dtype=np.bool_)

    def fits(self, job: int, columns: IntArray) -> BoolArray:
        """Return the mask of the `columns` that the job could take now."""
        return np.asarray(self._within(job, columns).all(axis=0))

    def fits_quota(self, job: int, columns: IntArray) -> BoolArray:
        """Return the mask of the `columns` that the job could take now by the rows that do not apply to all
        jobs.
        """
        return np.asarray(self._within(job, columns)[~self._shared].all(axis=0))

    def _within(self, job: int, columns: IntArray) -> BoolArray:
        within = self._demand[:, columns] <= self._left[:, None]
        return np.asarray(within | ~self._counts[:, job, None])

    def take(self, job: int, column: int) -> None:
        """Subtract the demand of a column that fits, for this job."""
        self._left -= np.where(self._counts[:, job], self._demand[:, column], 0.0)

    def swap(self, job: int, column: int, other: int) -> bool:
        """Replace a column that the job took by another one if that fits. Return True if it does."""
        more = np.where(self._counts[:, job], self._demand[:, other] - self._demand[:, column], 0.0)
        fits = bool((more <= self._left).all())
        if fits:
            self._left -= more
        return fits

    def exhausted(self, columns: BoolArray) -> bool:
        """Return True if none of the marked columns (C,) fits any more, for any job."""
        within = self._demand[:, columns] <= self._left[:, None]
        return not within[self._shared].all(axis=0).any()


def serve_in_order(given: RoundInput, order: IntArray, *, blocking: bool) -> IntArray:
    """Return the columns (J,) of jobs served in this order: the present column, otherwise the best one that
    fits.

    With `blocking`, the first job that has to wait makes all later jobs wait. Exceptions are a job that waits
    for a quota of its own, and one that would not fit into the empty cluster either.
    """
    goodput = requested_goodput(given)
    wish = np.where(kept(given) & (goodput > 0), np.inf, goodput)
    capacity = Capacity(given.rows, *goodput.shape)
    empty = Capacity(given.rows, *goodput.shape)
    wanted = np.asarray((goodput > 0).any(axis=0))
    chosen = np.full(len(goodput), NOTHING, dtype=np.int64)
    for job in order:
        columns = np.flatnonzero(wish[job] > 0)
        fitting = columns[capacity.fits(job, columns)]
        if len(fitting):
            chosen[job] = fitting[np.argmax(wish[job, fitting])]
            capacity.take(job, chosen[job])
            continue
        blocks = blocking and (empty.fits(job, columns) & capacity.fits_quota(job, columns)).any()
        if blocks or capacity.exhausted(wanted):
            break
    return chosen


def served(given: RoundInput, order: IntArray, *, blocking: bool = False) -> Choices:
    """Return the choices of a policy that is defined by its order.

    Unless the policy is `blocking`, firm jobs and overdue jobs precede the order. With `blocking`, running
    jobs stay anyway and no job overtakes another. The utility of a job's turn falls from 1 for the first to 1
    / jobs for the last. The choice is the best by the order itself, which no sum of utilities expresses: the
    bound is the objective, and no row has a price.
    """
    if not blocking:
        order = turns_first(given, order)
    chosen = serve_in_order(given, order, blocking=blocking)
    turn = np.empty(len(order))
    turn[order] = 1.0 - np.arange(len(order)) / max(len(order), 1)
    utility = np.where(requested_goodput(given) > 0, turn[:, None], -np.inf)
    return ordered_choices(given, chosen, utility, "turn")


def ordered_choices(given: RoundInput, chosen: IntArray, utility: FloatArray, unit: str) -> Choices:
    """Return choices that an order made; a job without slots is worth 0."""
    has = chosen != NOTHING
    objective = float(utility[np.flatnonzero(has), chosen[has]].sum())
    solution = Solution(
        chosen=chosen,
        objective=objective,
        bound=objective,
        prices=np.zeros(len(given.rows)),
        status="optimal",
    )
    return Choices(chosen=chosen, utility=utility, idle=np.zeros(len(chosen)), unit=unit, solution=solution)
