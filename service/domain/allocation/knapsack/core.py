"""The problem as the solver works on it: gains over having nothing, rows scaled to a capacity of one.

`N` jobs that could gain anything, sorted so that the jobs of a cell are neighbours; `G` cells: jobs that the same rows
count; `C` configurations; `R` rows that can bind. A scaled price is what the whole capacity of a row is worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.arrays import BoolArray, FloatArray, IntArray

FULL = 1.0 + 1e-10
"""The scaled capacity: sums of dollars are rounded, so a row that is exceeded by no more is kept."""
_LARGEST = 1e100
"""A utility beyond it counts as not allowed, and a capacity below its inverse as none: sums must stay finite."""
_BLOCK = 512
"""Jobs priced at once, so that the work stays in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """`gain` (N, C): positive, or -inf where not allowed; `demand` (R, C) in shares of the row's capacity; `counts`
    (R, G): 1 where the row counts a cell's jobs, else 0; `cell` (N,); `job` (N,) and `row` (R,) are the indices in the
    problem, and `capacity` (R,) is in the row's own unit. `idle` is the sum of what having nothing is worth.
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
        """What each configuration costs the jobs of each cell at scaled prices: (G, C)."""
        costs: FloatArray = (self.counts.T * prices) @ self.demand
        return costs

    def best_choice(self, prices: FloatArray) -> tuple[IntArray, FloatArray]:
        """What each job would choose at scaled prices, the first on ties, and its gain less the price: (N,), (N,)."""
        costs = self.cell_prices(prices)
        same = not (costs != costs[0]).any()
        count, width = self.gain.shape
        choice, value = np.empty(count, np.int64), np.empty(count)
        room = np.empty((min(_BLOCK, count), width))
        for start in range(0, count, _BLOCK):
            block = slice(start, min(start + _BLOCK, count))
            net = room[: block.stop - start]
            np.subtract(self.gain[block], costs[0] if same else costs[self.cell[block]], out=net)
            best = net.argmax(axis=1)
            choice[block], value[block] = best, net[np.arange(len(net)), best]
        nothing = value <= 0.0
        choice[nothing], value[nothing] = NOTHING, 0.0
        return choice, value

    def cell_usage(self, choice: IntArray) -> FloatArray:
        """The share of each row's capacity that the jobs of each cell take: (G, R)."""
        cells, width = self.counts.shape[1], self.gain.shape[1]
        some = choice != NOTHING
        taken = np.bincount(self.cell[some] * width + choice[some], minlength=cells * width)
        usage: FloatArray = (taken.reshape(cells, width) @ self.demand.T) * self.counts.T
        return usage

    def usage(self, choice: IntArray, rows: IntArray | None = None) -> FloatArray:
        """The share of each row's capacity that is taken: (R,), or of some rows only."""
        demand, counts = (
            (self.demand, self.counts) if rows is None else (self.demand[rows], self.counts[rows])
        )
        jobs = np.flatnonzero(choice != NOTHING)
        total = np.zeros(len(demand))
        for row in range(len(demand)):
            total[row] = (demand[row, choice[jobs]] * counts[row, self.cell[jobs]]).sum()
        return total

    def gain_of(self, choice: IntArray) -> FloatArray:
        """What each job gains by its choice: (N,)."""
        some = choice != NOTHING
        gains = np.zeros(len(choice))
        gains[some] = self.gain[some, choice[some]]
        return gains

    def value(self, choice: IntArray) -> float:
        """What all jobs gain by their choices."""
        return float(self.gain_of(choice).sum())

    def fits(self, choice: IntArray) -> bool:
        """Whether every job may have its choice and every row is kept."""
        return bool((self.usage(choice) <= FULL).all() and (self.gain_of(choice) > -np.inf).all())


def build(problem: Problem, *, cells: int) -> Core:
    """The core of a problem, its jobs in at least so many cells where there are as many jobs.

    Not allowed: a utility that is not finite, a configuration that does not fit alone or is worth no more than
    nothing. An idle utility that is not finite counts as 0, a capacity that is negative or not a number as 0, a
    negative demand as 0, and a demand that is not finite never fits.
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
    wanting = np.flatnonzero((gain > 0.0).any(axis=1))
    job, cell, counts = _cells(in_row[live][:, wanting], cells)
    scaled = np.minimum(demand[live], capacity[live, None]) / capacity[live, None]
    return Core(
        gain=gain[wanting[job]],
        demand=scaled,
        counts=counts,
        cell=cell,
        job=wanting[job],
        row=live,
        capacity=capacity[live],
        idle=float(idle.sum()),
    )


def _rows(rows: tuple[Row, ...], jobs: int, columns: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Demands (R, C), capacities (R,) and members (R, J), cleaned."""
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
    """The jobs' order, the cell of each in that order, and which rows count which cell (R, G)."""
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
