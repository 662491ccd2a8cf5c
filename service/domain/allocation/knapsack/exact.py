"""The exact finish: every choice whose gain lies within a distance of the dual bound, by dynamic programming.

At the dual's prices a choice falls short of the bound by its cost: its jobs' losses, and the price of what it leaves
unused. For the cost to be small, hardly any job may stray from its best choice, and those few that may are
enumerated job by job, with one state for each usage of the rows. When nothing costs less than some limit, the bound is
lower by that limit; the limit is doubled until it reaches the best choice known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.core import FULL, Core
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.rounding import Switches
from service.domain.arrays import BoolArray, FloatArray, IntArray

_GRAIN = 2.0**44
"""Usages that differ by less than one part of it are the same state."""
_ODD = -7046029254386353131
"""Makes one number of a usage's numbers."""
_ROWS = 10
"""So many rows make a partial choice twice as much work."""
_STATES = 20_000
"""States kept at a time; when there are more, the search is no proof any longer."""
_WORK = 2_000_000
"""Partial choices weighed for an effort of one: about a second."""
_POINTS = 500
"""Points of a frontier."""
_FIRST = 12
"""The first limit lets about so many other choices in."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The cheapest choice that costs less than a limit, if there is one, and whether all such were looked at."""

    choice: IntArray | None
    cost: float
    complete: bool


@dataclass(frozen=True, slots=True)
class _Rest:
    """What is known of the jobs still to come: what they must cost, row by row and for their kinds' own rows.

    `frontiers` has for each row that they may take from, by ascending amounts that they could take in all, the least
    that their losses come to less the price of the amount. A loss is divided among the rows in which an option differs
    from the best, so that the rows' costs may be added up.
    """

    frontiers: dict[int, tuple[FloatArray, FloatArray]]
    own_rows: float


class Finish:
    """The search around one dual solution; `effort` is spent by all its calls together."""

    def __init__(self, core: Core, moves: Switches, prices: FloatArray, *, effort: float) -> None:
        self._core, self._moves, self._prices = core, moves, prices
        self._best, value = core.best_choice(prices)
        self._top = float(prices.sum() * FULL + value.sum())
        self._work = _WORK * effort
        kinds, kind = np.unique(core.counts, axis=1, return_inverse=True)
        self._kind = kind.reshape(-1)[core.cell]
        self._own = (kinds > 0.0) & (kinds.sum(axis=1) == 1.0)[:, None] & (kinds.shape[1] > 1)
        """Rows (R, kinds) that count the jobs of that kind only, as a project's quota does."""
        self._floor = np.zeros(kinds.shape[1])
        """What the jobs of each kind cost at least, for the sake of their own rows."""

    @property
    def bound(self) -> float:
        """The most that any choice gains, as far as the kinds' own rows tell."""
        return self._top - float(self._floor.sum())

    def by_kind(self) -> IntArray:
        """The choice that is best at the prices when each kind keeps its own rows; common rows may be exceeded."""
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
        """The choice, improved until it is proven to be within `enough` of the best, or the effort is spent, and the
        most that any choice gains.
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
        return float(other[min(_FIRST, len(other) - 1)]) if len(other) else 1e-9 * (1.0 + abs(self._top))

    def _search(self, limit: float, kind: int | None = None) -> _Found:
        """The cheapest choice below the limit. With a kind: of its jobs only, as if there were only its own rows."""
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
                self._work -= len(kept) * len(options[index]) * (1.0 + len(rows) / _ROWS)
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
        """The jobs that may stray, kind by kind and the largest first, each one's options, and what is to come from
        each of them on.
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
        """Put a job before those whose frontiers these are."""
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
    """What the jobs so far may take of each row (S, R), and what that costs at least (S,)."""

    def __init__(self, usage: FloatArray, prices: FloatArray) -> None:
        self.usage, self.cost = usage[None, :], np.zeros(1)
        self._prices = prices.copy()

    def branch(self, loss: FloatArray, demand: FloatArray) -> None:
        """Every state with every option of the next job."""
        self.usage = (self.usage[:, None, :] + demand).reshape(-1, demand.shape[1])
        self.cost = (self.cost[:, None] + loss).reshape(-1)

    def settle(self, rest: _Rest, limit: float) -> tuple[IntArray, bool]:
        """Keep the states that can still keep every row for less than the limit, the cheapest of each usage; which
        those are, and whether that is all of them. The price of a row that nobody takes from any more is paid.
        """
        reach = self.cost + (FULL - self.usage) @ self._prices
        reach = np.where(self.usage.max(axis=1, initial=0.0) > FULL, np.inf, reach)
        for row, (amounts, costs) in rest.frontiers.items():
            place = np.searchsorted(amounts, FULL - self.usage[:, row], side="right") - 1
            reach += np.where(place >= 0, costs[place], np.inf)
        low = np.maximum(reach, self.cost + rest.own_rows)
        kept = np.flatnonzero(low < limit)
        kept = kept[_distinct(self.usage[kept], self.cost[kept])]
        every = len(kept) <= _STATES
        if not every:
            kept = kept[np.argpartition(low[kept], _STATES)[:_STATES]]
        self.usage, self.cost = self.usage[kept], self.cost[kept]
        closed = np.array([row not in rest.frontiers for row in range(self.usage.shape[1])], bool)
        self.cost += (FULL - self.usage[:, closed]) @ self._prices[closed]
        self.usage[:, closed] = 0.0
        self._prices[closed] = 0.0
        return kept, every


def _frontier(amounts: FloatArray, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Those that cost less than any smaller amount. Where they are too many, neighbours count as the smallest amount
    and the least cost of them: nothing is foretold too dear.
    """
    order = np.lexsort((costs, amounts))
    amounts, costs = amounts[order], costs[order]
    least = np.minimum.accumulate(costs)
    better = np.concatenate([[True], costs[1:] < least[:-1]])
    amounts, costs = amounts[better], costs[better]
    if len(amounts) > _POINTS:
        first = np.linspace(0, len(amounts), _POINTS, endpoint=False).astype(np.int64)
        amounts, costs = amounts[first], costs[np.append(first[1:], len(costs)) - 1]
    return amounts, costs


def _distinct(usage: FloatArray, cost: FloatArray) -> IntArray:
    """The places of the cheapest state of each usage."""
    grains = np.rint(usage * _GRAIN).astype(np.int64)
    key = grains @ np.cumprod(np.full(usage.shape[1], _ODD, np.int64))
    order = np.lexsort((cost, key))
    grains = grains[order]
    first = np.ones(len(order), bool)
    first[1:] = (grains[1:] != grains[:-1]).any(axis=1)
    return order[first]
