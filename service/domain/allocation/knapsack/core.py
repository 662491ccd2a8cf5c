"""Internal form of the problem: gains over having nothing, and rows scaled to a capacity of one.

It has the `N` jobs that can gain anything, sorted so that the jobs of a cell are adjacent. A cell is a set of
jobs counted by the same rows. There are `G` cells, `C` configurations and `R` rows that can bind. A scaled
price is the worth of the whole capacity of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

FULL = 1.0 + 1e-10
"""Scaled capacity of a row, with a tolerance for the rounding of sums of dollars."""
_LARGEST = 1e100
"""Bound on magnitudes, so that sums stay finite: larger utilities are excluded, capacities below its inverse
count as 0.
"""
_BLOCK = 512
"""Number of jobs priced at once, so that the data fit the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Arrays of the internal problem.

    `gain` (N, C) is positive, or -inf for an excluded configuration. `demand` (R, C) is in fractions of the
    row's capacity. `counts` (R, G) is 1 if the row counts a cell's jobs, otherwise 0. `cell` (N,) is the cell
    of each job. `job` (N,) and `row` (R,) are indices in the original problem. `capacity` (R,) is in the
    row's own unit. `idle` is the total worth of nothing.
    """

    gain: FloatArray
    demand: FloatArray
    counts: FloatArray
    cell: IntArray
    job: IntArray
    row: IntArray
    capacity: FloatArray
    idle: float

    def cell_prices(self, prices: FloatArray) -> FloatArray:
        """Return the cost (G, C) of each configuration to the jobs of each cell, at scaled prices."""
        costs: FloatArray = (self.counts.T * prices) @ self.demand
        return costs

    def best_choice(self, prices: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return each job's best choice (N,) at scaled prices, the first on ties, and its gain less the price
        (N,).
        """
        costs = self.cell_prices(prices)
        same = not (costs != costs[0]).any()
        count, width = self.gain.shape
        choice, value = np.empty(count, np.int64), np.empty(count)
        buffer = np.empty((min(_BLOCK, count), width))
        for start in range(0, count, _BLOCK):
            block = slice(start, min(start + _BLOCK, count))
            net = buffer[: block.stop - start]
            np.subtract(self.gain[block], costs[0] if same else costs[self.cell[block]], out=net)
            best = net.argmax(axis=1)
            choice[block], value[block] = best, net[np.arange(len(net)), best]
        nothing = value <= 0.0
        choice[nothing], value[nothing] = NOTHING, 0.0
        return choice, value

    def cell_usage(self, choice: IntArray) -> FloatArray:
        """Return the fraction (G, R) of each row's capacity that the jobs of each cell take."""
        cells, width = self.counts.shape[1], self.gain.shape[1]
        some = choice != NOTHING
        taken = np.bincount(self.cell[some] * width + choice[some], minlength=cells * width)
        usage: FloatArray = (taken.reshape(cells, width) @ self.demand.T) * self.counts.T
        return usage

    def usage(self, choice: IntArray, rows: IntArray | None = None) -> FloatArray:
        """Return the fraction (R,) of each row's capacity that is taken, or only of the rows given."""
        demand, counts = (
            (self.demand, self.counts) if rows is None else (self.demand[rows], self.counts[rows])
        )
        jobs = np.flatnonzero(choice != NOTHING)
        total = np.zeros(len(demand))
        for row in range(len(demand)):
            total[row] = (demand[row, choice[jobs]] * counts[row, self.cell[jobs]]).sum()
        return total

    def gain_of(self, choice: IntArray) -> FloatArray:
        """Return the gain (N,) of each job by its choice."""
        some = choice != NOTHING
        gains = np.zeros(len(choice))
        gains[some] = self.gain[some, choice[some]]
        return gains

    def value(self, choice: IntArray) -> float:
        """Return the total gain of all jobs by their choices."""
        return float(self.gain_of(choice).sum())

    def fits(self, choice: IntArray) -> bool:
        """Return True if every job may have its choice and every row is kept."""
        return bool((self.usage(choice) <= FULL).all() and (self.gain_of(choice) > -np.inf).all())


def build(problem: Problem, *, cells: int) -> Core:
    """Return the internal form of a problem with at least `cells` cells, or one per job if there are fewer
    jobs.

    Excluded are utilities that are not finite, and configurations that do not fit alone or gain nothing. An
    idle utility that is not finite counts as 0. So does a capacity that is negative or NaN, and a negative
    demand. A demand that is not finite never fits.
    """
    idle = np.where(np.abs(problem.idle) < _LARGEST, problem.idle, 0.0)
    allowed = np.abs(problem.utility) < _LARGEST
    gain = np.where(allowed, problem.utility, -np.inf) - idle[:, None]
    demand, capacity, in_row = _rows(problem.rows, len(idle), gain.shape[1])
    for row in range(len(problem.rows)):
        unfit = ~(demand[row] <= capacity[row] * FULL) | np.isinf(demand[row])
        if unfit.any():
            members = in_row[row]
            gain[np.ix_(members, unfit)] = -np.inf
    gain[~(gain > 0.0)] = -np.inf
    live = np.flatnonzero(
        (capacity > 0.0) & (capacity < np.inf) & (demand > 0.0).any(axis=1) & in_row.any(axis=1)
    )
    gainers = np.flatnonzero((gain > 0.0).any(axis=1))
    job, cell, counts = _cells(in_row[live][:, gainers], cells)
    scaled = np.minimum(demand[live], capacity[live, None]) / capacity[live, None]
    return Core(
        gain=gain[gainers[job]],
        demand=scaled,
        counts=counts,
        cell=cell,
        job=gainers[job],
        row=live,
        capacity=capacity[live],
        idle=float(idle.sum()),
    )


def _rows(rows: tuple[Row, ...], jobs: int, columns: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the cleaned demands (R, C), capacities (R,) and members (R, J)."""
    demand = np.array([row.demand for row in rows], float).reshape(len(rows), columns)
    demand = np.where(np.isfinite(demand), np.maximum(demand, 0.0), np.inf)
    capacity = np.array([row.capacity for row in rows], float)
    capacity = np.where(capacity > 1.0 / _LARGEST, capacity, 0.0)
    in_row = np.ones((len(rows), jobs), bool)
    for index, row in enumerate(rows):
        if row.jobs is not None:
            in_row[index] = row.jobs
    return demand, capacity, in_row


def _cells(in_row: BoolArray, wanted: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the order of the jobs, the cell of each in that order, and the counts (R, G) of cells by rows."""
    jobs = in_row.shape[1]
    subset = ~in_row.all(axis=1)
    signature = np.zeros(jobs, np.int64)
    if subset.any():
        packed = np.ascontiguousarray(np.packbits(in_row[subset], axis=0).T)
        signature = np.unique(packed, axis=0, return_inverse=True)[1].reshape(jobs)
    order = np.argsort(signature, kind="stable")
    signature = signature[order]
    place = np.arange(jobs) - np.searchsorted(signature, signature)
    first = place % max(1, -(-jobs // max(wanted, 1))) == 0
    return order, np.cumsum(first) - 1, in_row[:, order[first]].astype(float)
