"""Exact allocation by dynamic programming over counts, for one device kind with interchangeable slots.

The recursion is IBM's (Saxena et al., MASCOTS'20; `best[j][k] = max over g of gain_j(g) + best[j-1][k-g]`).
It keeps exact counts, so that a policy may also require a full pool.
"""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution, Solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

MAX_WORK = 20_000_000
"""Maximum product of jobs, sizes and slots for which the program runs: about 0.2 s."""


def solved_by_counts(
    given: RoundInput,
    solve: Solve,
    utility: FloatArray,
    idle: FloatArray,
    unit: str,
    *,
    must_have: BoolArray | bool = False,
    fill: bool = False,
) -> Choices:
    """Return the best choices for these utilities, by counts if possible, otherwise by the shared solver.

    Only the method by counts guarantees slots for the jobs that `must_have` (J,) some, and a full pool
    (`fill`). For the shared solver, the caller must choose utilities that leave no better choice.
    """
    if len(given.configurations.kinds) == 1:
        seated = False if given.seats is None else given.seats != NOTHING
        forced = np.where(np.logical_or(must_have, seated), -np.inf, idle)
        problem = Problem(utility=utility, idle=forced, rows=given.rows, current=given.current)
        exact = solve_by_counts(problem, fill=fill)
        if exact is not None:
            return Choices(chosen=exact.chosen, utility=utility, idle=idle, unit=unit, solution=exact)
    return solved(given, solve, utility, idle, unit)


def solve_by_counts(problem: Problem, *, fill: bool = False) -> Solution | None:
    """Return the best choice under the first row if it keeps the other rows as well.

    Unlike the shared solver it accepts an idle utility of -inf: a job that must have something. With `fill`,
    the function takes as much of the row as possible and returns the best of those choices (ONES).

    Return None in each of these cases: the choice breaks another row, the first row does not count whole
    slots of all jobs, the work is too much, or nothing is feasible.
    """
    slots = _whole_slots(problem)
    if slots is None:
        return None
    demand, capacity = slots
    sizes = np.unique(demand)
    if len(problem.utility) * len(sizes) * (capacity + 2) > MAX_WORK:
        return None
    gain, column = _best_of_each_size(problem, demand, sizes)
    # One slot more than the capacity: the value that it adds is the price of the row.
    value, picks = _tabulate(gain, sizes, capacity + 1)
    count = _best_count(value[:-1], fill=fill)
    if value[count] == -np.inf:
        return None
    chosen = _trace_back(picks, column, sizes, count)
    if any(
        _taken(problem, row, chosen) > max(0.0, one.capacity) + 1e-9 for row, one in enumerate(problem.rows)
    ):
        return None
    prices = np.zeros(len(problem.rows))
    prices[0] = max(0.0, value[_best_count(value, fill=fill)] - value[count])
    best = float(value[count])
    return Solution(chosen=chosen, objective=best, bound=best, prices=prices, status="optimal")


def _whole_slots(problem: Problem) -> tuple[IntArray, int] | None:
    """Return the demand (1+C,) of nothing and of each column on the first row, and its capacity, in whole slots."""
    if not problem.rows or problem.rows[0].jobs is not None:
        return None
    row = problem.rows[0]
    if not np.isfinite(row.demand).all() or (row.demand != np.rint(row.demand)).any():
        return None
    most = len(problem.utility) * float(row.demand.max(initial=0.0))
    capacity = np.floor(np.clip(np.nan_to_num(row.capacity, posinf=most), 0.0, most) + 1e-9)
    return np.concatenate([[0], row.demand.astype(np.int64)]), int(capacity)


def _best_of_each_size(problem: Problem, demand: IntArray, sizes: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the best utility (J, D) by size, and the column (J, D) that has it."""
    utility = np.concatenate([problem.idle[:, None], problem.utility], axis=1)
    utility = np.where(np.isfinite(utility), utility, -np.inf)
    jobs = np.arange(len(utility))
    best = np.empty((len(sizes), len(utility)), dtype=np.int64)
    for position, size in enumerate(sizes):
        members = np.flatnonzero(demand == size)
        best[position] = members[utility[:, members].argmax(axis=1)]
    return utility[jobs[:, None], best.T], best.T - 1  # index 0 stands for no column


def _tabulate(gain: FloatArray, sizes: IntArray, capacity: int) -> tuple[FloatArray, IntArray]:
    """Return the best value (K+1,) of exactly k slots, and the size (J, K+1) that each job has in it."""
    value = np.full(capacity + 1, -np.inf)
    value[0] = 0.0
    picks = np.zeros((len(gain), capacity + 1), dtype=np.int64)
    unreachable = np.full(int(sizes.max()), -np.inf)
    before = len(unreachable) + np.arange(capacity + 1) - sizes[:, None]
    for job, gains in enumerate(gain):
        candidates = np.concatenate([unreachable, value])[before] + gains[:, None]
        picks[job] = candidates.argmax(axis=0)
        value = candidates.max(axis=0)
    return value, picks


def _best_count(value: FloatArray, *, fill: bool) -> int:
    feasible = np.flatnonzero(value > -np.inf)
    return int(feasible[-1]) if fill and feasible.size else int(value.argmax())


def _trace_back(picks: IntArray, column: IntArray, sizes: IntArray, count: int) -> IntArray:
    chosen = np.full(len(picks), NOTHING)
    for job in reversed(range(len(picks))):
        size = picks[job, count]
        chosen[job] = column[job, size]
        count -= int(sizes[size])
    return chosen


def _taken(problem: Problem, row: int, chosen: IntArray) -> float:
    """Return the total demand of the choices on a row."""
    holds = chosen != NOTHING
    jobs = problem.rows[row].jobs
    counts = holds if jobs is None else holds & jobs
    return float(problem.rows[row].demand[chosen[counts]].sum())
