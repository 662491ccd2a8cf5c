"""Allocation problem in which some jobs must have one of their configurations.

The constraint "this job gets one of its configurations" is an exact penalty on having none. The penalty
exceeds what all jobs together could gain. A choice that leaves such a job without slots is therefore worse
than every choice that does not, and bound, gap and prices of the penalised problem are those of the
constrained one.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution, Solve
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_MARGIN = 2.0
"""Multiple of the total possible gain of all jobs; a value above 1 makes the penalty exact."""


def with_guaranteed_jobs(solve: Solve, seats: IntArray) -> Solve:
    """Return a solver that gives each job of `seats` (J,) one of its configurations.

    `seats` has a column for each such job, and `NOTHING` for the others; together the seats keep every row of
    the round. A job without an allowed configuration in a problem is exempt. If a problem has less capacity
    than the seats need, as many of these jobs as possible get slots.
    """
    if not (seats != NOTHING).any():
        return solve
    return lambda problem: _solved(problem, solve, seats)


def _solved(problem: Problem, solve: Solve, seats: IntArray) -> Solution:
    offered = np.isfinite(problem.utility)
    idle = np.where(np.isfinite(problem.idle), problem.idle, 0.0)
    must = (seats != NOTHING) & offered.any(axis=1)
    if not must.any():
        return solve(problem)
    penalty = np.where(must, _penalty(problem.utility, idle, offered), 0.0)
    lowered = replace(problem, idle=idle - penalty)
    solution = solve(lowered)
    if _missing(solution.chosen, must).any():
        # The solver never makes its initial choice worse, so no job loses a seat.
        seated = np.where(offered[np.arange(len(seats)), seats], seats, NOTHING)
        solution = max(solution, solve(replace(lowered, current=seated)), key=attrgetter("objective"))
    # If the rows of this problem leave too little capacity, the penalties of jobs without a seat are removed
    # from the objective.
    charged = float(penalty[_missing(solution.chosen, must)].sum())
    return replace(solution, objective=solution.objective + charged, bound=solution.bound + charged)


def _penalty(utility: FloatArray, idle: FloatArray, offered: BoolArray) -> float:
    """Return a value above the gain of any change of all choices together."""
    best = np.where(offered, utility, -np.inf).max(axis=1)
    worst = np.where(offered, utility, np.inf).min(axis=1)
    spread: FloatArray = np.maximum(best, idle) - np.minimum(worst, idle)
    return _MARGIN * float(spread[np.isfinite(spread)].sum()) + 1.0


def _missing(chosen: IntArray, must: BoolArray) -> BoolArray:
    return np.asarray(must & (chosen == NOTHING))
