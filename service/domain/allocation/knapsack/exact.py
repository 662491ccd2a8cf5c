"""Exact search: every choice whose gain lies within a distance of the dual bound, by dynamic programming.

At the dual prices a choice falls short of the bound by its cost: the losses of its jobs, and the price of the
unused capacity. If the cost is small, few jobs can deviate from their best choice. The search enumerates
these job by job, with one state for each usage of the rows. If no choice costs less than some limit, the
bound falls by that limit. The limit doubles until it reaches the best choice known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.core import FULL, Core
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.rounding import Switches
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_RESOLUTION = 2.0**44
"""Resolution of usages: usages that differ by less than its inverse are the same state."""
_HASH_FACTOR = -7046029254386353131
"""Multiplier that hashes the numbers of a usage to one number."""
_ROWS_PER_DOUBLING = 10
"""Number of rows that doubles the work counted for a partial choice."""
_MAX_STATES = 20_000
"""Maximum number of states; with more, the search proves nothing."""
_WORK = 2_000_000
"""Number of partial choices considered for an effort of one: about a second."""
_MAX_POINTS = 500
"""Maximum number of points of a frontier."""
_FIRST_OPTIONS = 12
"""Approximate number of alternative choices that the first limit admits."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The cheapest choice below a limit, if there is one. `complete` is True if the search covered all such
    choices.
    """

    choice: IntArray | None
    cost: float
    complete: bool


@dataclass(frozen=True, slots=True)
class _Rest:
    """Lower bounds on the cost of the remaining jobs, by row and for the rows that count one kind of job
    only.

    `frontiers` has an entry for each row that these jobs may take from. It maps ascending amounts that they
    could take in total to the minimum of their losses less the price of the amount. A loss is divided among
    the rows in which an option differs from the best, so that the costs of the rows may be added up.
    """

    frontiers: dict[int, tuple[FloatArray, FloatArray]]
    own_rows: float


class Finish:
    """Exact search around one dual solution. All calls share the work allowed by `effort`."""

    def __init__(self, core: Core, moves: Switches, prices: FloatArray, *, effort: float) -> None:
        self._core, self._moves, self._prices = core, moves, prices
        self._best, value = core.best_choice(prices)
        self._top = float(prices.sum() * FULL + value.sum())
        self._work = _WORK * effort
        kinds, kind = np.unique(core.counts, axis=1, return_inverse=True)
        self._kind = kind.reshape(-1)[core.cell]
        self._own = (kinds > 0.0) & (kinds.sum(axis=1) == 1.0)[:, None] & (kinds.shape[1] > 1)
        """Rows (R, kinds) that count only the jobs of that kind, such as a project's quota."""
        self._floor = np.zeros(kinds.shape[1])
        """Lower bound on the cost of the jobs of each kind, due to their own rows."""

    @property
    def bound(self) -> float:
        """Upper bound on the gain of any choice that the kinds' own rows prove."""
        return self._top - float(self._floor.sum())

    def by_kind(self) -> IntArray:
        """Return the best choice at the prices when each kind keeps its own rows; common rows may be exceeded."""
        choice = self._best
        for kind in np.flatnonzero(self._own.any(axis=0)).tolist():
            mine = self._kind == kind
            limit = self._first_limit(mine[self._moves.job])
            found = self._search(limit, kind)
            while found.choice is None and found.complete:
                self._floor[kind] = limit
                limit *= 2.0
                found = self._search(limit, kind)
            if found.choice is not None:
                choice = np.where(mine, found.choice, choice)
            if found.complete:
                self._floor[kind] = found.cost
        return choice

    def run(self, choice: IntArray, *, enough: float, expired: Callable[[], bool]) -> tuple[IntArray, float]:
        """Return the improved choice and an upper bound on the gain of any choice.

        The search ends once the choice is proven to be within `enough` of the optimum, or when the effort is
        spent.
        """
        cost = self._top - self._core.value(choice)
        proven = float(self._floor.sum())
        limit = max(self._first_limit(np.ones(len(self._moves.job), bool)), 1.2 * proven, cost / 128.0)
        while cost - proven > enough and not expired():
            limit = min(limit, cost)
            found = self._search(limit)
            if found.choice is not None:
                choice, cost = found.choice, found.cost
            if not found.complete:
                break
            proven = min(limit, cost)
            limit *= 2.0
        return choice, self._top - min(proven, cost)

    def _first_limit(self, among: BoolArray) -> float:
        other = np.sort(self._moves.loss[among & (self._moves.loss > 0.0)])
        return (
            float(other[min(_FIRST_OPTIONS, len(other) - 1)]) if len(other) else 1e-9 * (1.0 + abs(self._top))
        )

    def _search(self, limit: float, kind: int | None = None) -> _Found:
        """Return the cheapest choice below the limit. With a kind, it covers only the jobs and the own rows
        of that kind.
        """
        rows = np.arange(len(self._prices)) if kind is None else np.flatnonzero(self._own[:, kind])
        jobs, options, rests = self._jobs(limit, kind, rows)
        choice = self._best.copy() if kind is None else np.where(self._kind == kind, self._best, NOTHING)
        choice[jobs] = NOTHING
        states = _States(self._core.usage(choice, rows), self._prices[rows])
        complete = limit <= self._moves.horizon
        trail = []
        for index, rest in enumerate(rests):
            kept, all_kept = states.settle(rest, limit)
            complete &= all_kept
            trail.append(kept)
            if not len(kept):
                return _Found(None, limit, complete)
            if index < len(jobs):
                self._work -= len(kept) * len(options[index]) * (1.0 + len(rows) / _ROWS_PER_DOUBLING)
                if self._work < 0.0:
                    return _Found(None, limit, complete=False)
                states.branch(
                    self._moves.loss[options[index]], self._moves.demand[np.ix_(options[index], rows)]
                )
        at = int(states.cost.argmin())
        cost = float(states.cost[at])
        for index in range(len(jobs) - 1, -1, -1):
            at, option = divmod(int(trail[index + 1][at]), len(options[index]))
            choice[jobs[index]] = self._moves.column[options[index][option]]
        return _Found(choice, cost, complete)

    def _jobs(
        self, limit: float, kind: int | None, rows: IntArray
    ) -> tuple[list[int], list[IntArray], list[_Rest]]:
        """Return the jobs that may deviate, kind by kind with the largest first, their options, and the
        bounds from each job on.
        """
        moves = self._moves
        usable = moves.loss < limit
        if kind is not None:
            usable &= self._kind[moves.job] == kind
        entries = np.flatnonzero(usable)
        job, first, count = np.unique(moves.job[entries], return_index=True, return_counts=True)
        job, first, count = job[count > 1], first[count > 1], count[count > 1]
        options = [entries[start : start + length] for start, length in zip(first, count, strict=True)]
        spread = [float(np.ptp(moves.demand[own], axis=0) @ self._prices) for own in options]
        order = np.lexsort((-np.array(spread), self._kind[job]))
        job, options = job[order], [options[index] for index in order.tolist()]
        starts = np.diff(self._kind[job], prepend=-1) > 0
        floors = np.where(starts, self._floor[self._kind[job]], 0.0) if kind is None else np.zeros(len(job))
        rests = [_Rest({}, 0.0)]
        for own, floor in zip(options[::-1], floors[::-1].tolist(), strict=True):
            frontiers = dict(rests[-1].frontiers)
            self._add(frontiers, own, rows)
            rests.append(_Rest(frontiers, rests[-1].own_rows + floor))
        return job.tolist(), options, rests[::-1]

    def _add(
        self, frontiers: dict[int, tuple[FloatArray, FloatArray]], own: IntArray, rows: IntArray
    ) -> None:
        """Add a job in front of the jobs of these frontiers."""
        demand, loss, prices = (
            self._moves.demand[np.ix_(own, rows)],
            self._moves.loss[own],
            self._prices[rows],
        )
        differs = demand != demand[loss.argmin()]
        share = loss[:, None] * differs / np.maximum(differs.sum(axis=1, keepdims=True), 1)
        for row in np.flatnonzero(demand.any(axis=0)).tolist():
            amounts, costs = frontiers.get(row, (np.zeros(1), np.zeros(1)))
            amounts = (amounts[:, None] + demand[:, row]).reshape(-1)
            costs = (costs[:, None] + share[:, row] - prices[row] * demand[:, row]).reshape(-1)
            frontiers[row] = _frontier(amounts, costs)


class _States:
    """Partial choices: usage of each row by the jobs so far (S, R), and the lower bound on its cost (S,)."""

    def __init__(self, usage: FloatArray, prices: FloatArray) -> None:
        self.usage, self.cost = usage[None, :], np.zeros(1)
        self._prices = prices.copy()

    def branch(self, loss: FloatArray, demand: FloatArray) -> None:
        """Replace the states by all combinations with the options of the next job."""
        self.usage = (self.usage[:, None, :] + demand).reshape(len(self.usage) * len(demand), -1)
        self.cost = (self.cost[:, None] + loss).reshape(-1)

    def settle(self, rest: _Rest, limit: float) -> tuple[IntArray, bool]:
        """Keep the states that can still keep every row for less than the limit, the cheapest of each usage.

        Return their indices, and True if none was dropped for lack of space. The price of a row that no
        remaining job takes from is paid here.
        """
        reach = self.cost + (FULL - self.usage) @ self._prices
        reach = np.where(self.usage.max(axis=1, initial=0.0) > FULL, np.inf, reach)
        for row, (amounts, costs) in rest.frontiers.items():
            place = np.searchsorted(amounts, FULL - self.usage[:, row], side="right") - 1
            reach += np.where(place >= 0, costs[place], np.inf)
        low = np.maximum(reach, self.cost + rest.own_rows)
        kept = np.flatnonzero(low < limit)
        kept = kept[_distinct(self.usage[kept], self.cost[kept])]
        every = len(kept) <= _MAX_STATES
        if not every:
            kept = kept[np.argpartition(low[kept], _MAX_STATES)[:_MAX_STATES]]
        self.usage, self.cost = self.usage[kept], self.cost[kept]
        closed = np.array([row not in rest.frontiers for row in range(self.usage.shape[1])], bool)
        self.cost += (FULL - self.usage[:, closed]) @ self._prices[closed]
        self.usage[:, closed] = 0.0
        self._prices[closed] = 0.0
        return kept, every


def _frontier(amounts: FloatArray, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the points that cost less than any smaller amount.

    If there are too many, adjacent points are merged to the smallest amount and the least cost among them, so
    that the bound stays valid.
    """
    order = np.lexsort((costs, amounts))
    amounts, costs = amounts[order], costs[order]
    least = np.minimum.accumulate(costs)
    better = np.concatenate([[True], costs[1:] < least[:-1]])
    amounts, costs = amounts[better], costs[better]
    if len(amounts) > _MAX_POINTS:
        first = np.linspace(0, len(amounts), _MAX_POINTS, endpoint=False).astype(np.int64)
        amounts, costs = amounts[first], costs[np.append(first[1:], len(costs)) - 1]
    return amounts, costs


def _distinct(usage: FloatArray, cost: FloatArray) -> IntArray:
    """Return the indices of the cheapest state of each usage."""
    grains = np.rint(usage * _RESOLUTION).astype(np.int64)
    key = grains @ np.cumprod(np.full(usage.shape[1], _HASH_FACTOR, np.int64))
    order = np.lexsort((cost, key))
    grains = grains[order]
    first = np.ones(len(order), bool)
    first[1:] = (grains[1:] != grains[:-1]).any(axis=1)
    return order[first]
