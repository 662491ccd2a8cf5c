"""Solver of the allocation problem: dual prices, a rounded choice, and an exact search if the gap requires
it.

The same problem with the same gap and effort always has the same solution. A solution always exists, because
giving nothing to every job keeps every row. `core.build` defines the treatment of invalid values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.domain.allocation.knapsack import exact, prices, rounding
from service.domain.allocation.knapsack.core import Core, build
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution
from service.domain.shared.arrays import IntArray

_PROVEN = 1e-9
"""Relative gap that counts as zero, due to rounding: capacities are kept to 1e-10."""
_ROUNDING = 1e-12
"""Difference of two objectives that counts as none, relative to the terms that they are sums of."""
_CELLS = 16
_SINGLE_JOBS = 64
"""Number of jobs up to which each has a cell of its own; few iterations then give exact prices."""
_ROUNDS = 200
"""Maximum number of iterations of the dual."""
_PAIRS = 40
"""Number of switch pairs tried for an effort of one."""


def solve(
    problem: Problem,
    *,
    gap: float = 1e-3,
    effort: float = 1.0,
    expired: Callable[[], bool] | None = None,
) -> Solution:
    """Return the choice with the highest total utility, to a proven relative gap.

    Args:
        problem: utilities, rows, and the present choice. If that keeps the rows, the solution is worth no
            less.
        gap: accepted optimality gap, relative to the bound; 0 asks for the optimum.
        effort: amount of work allowed to reach the gap once there is a solution; 1 is about a second.
        expired: called between the phases; once it returns True, the best choice so far is the result.
    """
    expired = expired or (lambda: False)
    jobs = len(problem.idle)
    core = build(problem, cells=jobs if jobs <= _SINGLE_JOBS else _CELLS)
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
    value = core.value(choice)
    objective, bound = core.idle + value, core.idle + bound
    at_prices = np.zeros(len(problem.rows))
    at_prices[core.row] = dual.prices / core.capacity
    # The two terms of the objective may cancel; their difference is then known no better than they are.
    is_rounding = bound - objective <= _ROUNDING * (abs(core.idle) + abs(value))
    gap_left = 0.0 if is_rounding else (bound - objective) / max(abs(bound), 1e-12)
    status = "optimal" if gap_left <= _PROVEN else "within_gap" if gap_left <= gap else "limit"
    bound = objective if gap_left <= _PROVEN else bound
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
    """Return the best choice found, and an upper bound on the gain of any choice."""
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
    """Return the jobs' present choices, `NOTHING` for choices that they may not keep."""
    current = problem.current[core.job]
    width = core.gain.shape[1]
    current = np.where((current >= 0) & (current < width), current, NOTHING)
    return np.where(core.gain_of(current) > -np.inf, current, NOTHING)


def _earlier_first(core: Core, choice: IntArray, current: IntArray) -> IntArray:
    """Return the choices with those of identical jobs exchanged, so that earlier jobs get the better ones."""
    finite = np.where(core.gain > 0.0, core.gain, 0.0)
    fingerprint = (finite * np.sin(np.arange(1.0, finite.shape[1] + 1.0))).sum(axis=1)
    gain = core.gain_of(choice)
    kind = np.unique(core.counts, axis=1, return_inverse=True)[1].reshape(-1)[core.cell]
    order = np.lexsort((core.job, current, kind, fingerprint))
    identical = (fingerprint[order][1:] == fingerprint[order][:-1]) & (kind[order][1:] == kind[order][:-1])
    identical &= current[order][1:] == current[order][:-1]
    identical[identical] = (core.gain[order[1:][identical]] == core.gain[order[:-1][identical]]).all(axis=1)
    group = np.concatenate([[0], np.cumsum(~identical)])
    better = np.lexsort((choice[order], -gain[order], group))
    result = choice.copy()
    result[order] = choice[order[better]]
    return result
