"""Solve the allocation problem: prices, a rounded choice, and an exact finish where the gap asks for it.

The same problem with the same gap and effort always has the same solution. There always is one: nothing for everybody
keeps every row. What a value that makes no sense counts as is said at `core.build`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.domain.allocation.knapsack import exact, prices, rounding
from service.domain.allocation.knapsack.core import Core, build
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution
from service.domain.arrays import IntArray

_PROVEN = 1e-9
"""A relative gap that is nothing but rounding: capacities are kept to 1e-10."""
_CELLS = 16
_SINGLE = 64
"""Up to so many jobs have a cell each: then few rounds give exact prices."""
_ROUNDS = 200
_PAIRS = 40
"""Rounds of prices, and pairs of switches, for an effort of one."""


def solve(
    problem: Problem,
    *,
    gap: float = 1e-3,
    effort: float = 1.0,
    expired: Callable[[], bool] | None = None,
) -> Solution:
    """The choice that is worth most, to a relative gap that is proven.

    Args:
        problem: utilities, rows, and the present choice. If that keeps the rows, the solution is worth no less.
        gap: how far from the best the solution may be, relative to the bound; 0 asks for the best.
        effort: how much work may go into reaching the gap once there is a solution; 1 is about a second.
        expired: asked between the phases; once true, the best choice so far is the answer.
    """
    expired = expired or _never
    jobs = len(problem.idle)
    core = build(problem, cells=jobs if jobs <= _SINGLE else _CELLS)
    chosen = np.full(jobs, NOTHING)
    if not len(core.job):
        return Solution(
            chosen=chosen,
            objective=core.idle,
            bound=core.idle,
            prices=np.zeros(len(problem.rows)),
            status="optimal",
        )
    dual = prices.minimise(
        core, tolerance=gap / 10.0 if gap > 0.0 else _PROVEN / 10.0, rounds=_ROUNDS, expired=expired
    )
    choice, bound = _round(core, dual, _current(core, problem), gap=gap, effort=effort, expired=expired)
    chosen[core.job] = _earlier_first(core, choice, problem.current[core.job])
    objective = core.idle + core.value(choice)
    bound = core.idle + bound
    at_prices = np.zeros(len(problem.rows))
    at_prices[core.row] = dual.prices / core.capacity
    left = (bound - objective) / max(abs(bound), 1e-12)
    status = "optimal" if left <= _PROVEN else "within_gap" if left <= gap else "limit"
    bound = objective if left <= _PROVEN else bound
    return Solution(chosen=chosen, objective=objective, bound=bound, prices=at_prices, status=status)


def _round(
    core: Core,
    dual: prices.Dual,
    current: IntArray,
    *,
    gap: float,
    effort: float,
    expired: Callable[[], bool],
) -> tuple[IntArray, float]:
    """The best choice found, and the most that any choice gains."""
    bound = dual.bound
    moves = rounding.switches(core, dual.prices)
    best = rounding.improve(core, moves, rounding.mixed(core, dual))
    if core.fits(current) and core.value(current) >= core.value(best):
        best = rounding.improve(core, moves, current)
    enough = max(gap, _PROVEN) * min(abs(core.idle + core.value(best)), abs(core.idle + bound))
    if bound - core.value(best) <= enough or expired():
        return best, bound
    finish = exact.Finish(core, moves, dual.prices, effort=effort)
    best = max(best, rounding.improve(core, moves, finish.by_kind()), key=core.value)
    bound = min(bound, finish.bound)
    if not expired():
        best = rounding.improve(core, moves, best, goal=bound - enough, pairs=int(_PAIRS * effort))
    if not expired():
        best, bound = finish.run(best, enough=enough, expired=expired)
    return best, min(bound, dual.bound)


def _current(core: Core, problem: Problem) -> IntArray:
    """The jobs' present choices, nothing where they may not keep them."""
    current = problem.current[core.job]
    width = core.gain.shape[1]
    current = np.where((current >= 0) & (current < width), current, NOTHING)
    return np.where(core.gain_of(current) > -np.inf, current, NOTHING)


def _earlier_first(core: Core, choice: IntArray, current: IntArray) -> IntArray:
    """The same choices, the better ones for the earlier of jobs that are alike in everything."""
    finite = np.where(core.gain > 0.0, core.gain, 0.0)
    mark = (finite * np.sin(np.arange(1.0, finite.shape[1] + 1.0))).sum(axis=1)
    gain = core.gain_of(choice)
    kind = np.unique(core.counts, axis=1, return_inverse=True)[1].reshape(-1)[core.cell]
    alike = np.lexsort((core.job, current, kind, mark))
    same = (mark[alike][1:] == mark[alike][:-1]) & (kind[alike][1:] == kind[alike][:-1])
    same &= current[alike][1:] == current[alike][:-1]
    same[same] = (core.gain[alike[1:][same]] == core.gain[alike[:-1][same]]).all(axis=1)
    group = np.concatenate([[0], np.cumsum(~same)])
    better = np.lexsort((choice[alike], -gain[alike], group))
    result = choice.copy()
    result[alike] = choice[alike[better]]
    return result


def _never() -> bool:
    return False
