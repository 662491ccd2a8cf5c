"""Rigid scheduling: every job at the size that it asked for, one after the other in a policy's order."""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row, Solution
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.speedup import kept, usable_goodput

_ROUNDING = 1e-9
"""Share of a capacity by which sums of demands may miss it: floats do not add up exactly."""
_UNLIMITED = 1e300
"""Stands for an infinite capacity, so that an infinite demand still does not fit."""


def requested_columns(given: RoundInput) -> BoolArray:
    """(J, C) the configurations of the size that a rigid scheduler gives each job.

    That is the largest size up to the requested one on which it can run, or the smallest beyond.
    """
    usable = usable_goodput(given) > 0
    slots = given.configurations.slots[None, :]
    within = np.where(usable & (slots <= given.requested_slots[:, None]), slots, 0).max(axis=1, initial=0)
    beyond = np.where(usable, slots, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    size = np.where(within > 0, within, beyond)
    return np.asarray(usable & (slots == size[:, None]))


class Capacity:
    """What the rows still have to give while jobs are served one by one."""

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
        """Which of `columns` the job could take now."""
        return np.asarray(self._within(job, columns).all(axis=0))

    def fits_quota(self, job: int, columns: IntArray) -> BoolArray:
        """Which of `columns` the job could take now as far as the rows go that are not for all jobs."""
        return np.asarray(self._within(job, columns)[~self._shared].all(axis=0))

    def _within(self, job: int, columns: IntArray) -> BoolArray:
        within = self._demand[:, columns] <= self._left[:, None]
        return np.asarray(within | ~self._counts[:, job, None])

    def take(self, job: int, column: int) -> None:
        """Let the job have a column that fits."""
        self._left -= np.where(self._counts[:, job], self._demand[:, column], 0.0)

    def exhausted(self, columns: BoolArray) -> bool:
        """Whether none of the marked columns (C,) fits any more, whoever asks."""
        within = self._demand[:, columns] <= self._left[:, None]
        return not within[self._shared].all(axis=0).any()


def serve_in_order(given: RoundInput, order: IntArray, *, blocking: bool) -> IntArray:
    """(J,) what each job gets when they are served in this order: first what it holds, then its best one that fits.

    `blocking`: the first job that has to wait makes all after it wait, unless it waits for a quota of its own or would
    not fit into the empty cluster either.
    """
    goodput = np.where(requested_columns(given), usable_goodput(given), 0.0)
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
    """The choices of a policy that is defined by its order.

    The utility of a job's turn falls from 1 for the first to 1 / jobs for the last. The choice is the best by the
    order itself, which no sum of utilities expresses: the bound is the objective, and no row has a price.
    """
    chosen = serve_in_order(given, order, blocking=blocking)
    turn = np.empty(len(order))
    turn[order] = 1.0 - np.arange(len(order)) / max(len(order), 1)
    utility = np.where(requested_columns(given), turn[:, None], -np.inf)
    return ordered_choices(given, chosen, utility, "turn")


def ordered_choices(given: RoundInput, chosen: IntArray, utility: FloatArray, unit: str) -> Choices:
    """Choices that an order made; what a job without any is worth is 0."""
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
