"""Solution of a policy's problem by the shared solver."""

from __future__ import annotations

from service.domain.allocation.knapsack.problem import Problem, Solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.shared.arrays import FloatArray


def solved(given: RoundInput, solve: Solve, utility: FloatArray, idle: FloatArray, unit: str) -> Choices:
    """Return the best choices for these utilities (J, C) and idle values (J,) under the round's rows."""
    solution = solve(Problem(utility=utility, idle=idle, rows=given.rows, current=given.current))
    return Choices(chosen=solution.chosen, utility=utility, idle=idle, unit=unit, solution=solution)
