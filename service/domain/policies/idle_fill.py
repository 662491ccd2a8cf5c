"""BFTrainer policy (Liu et al., 2106.12091): opportunistic jobs on the slots that other jobs leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution, Solve
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.scaling import scaling_factors
from service.domain.policies.framework.speedup import changed, finite, holding, kept, stop_cost_s
from service.domain.shared.arrays import BoolArray, IntArray

USUAL_WEIGHT = 1.0
"""Weight below which a job is opportunistic."""
_STATUSES = ("optimal", "within_gap", "limit")


@dataclass(frozen=True, slots=True)
class IdleFill:
    """Opportunistic jobs of a low weight on slots that other jobs leave, if a change pays off soon.

    A configuration is worth `forward_s * S(n)`, where S is the scaling factor. A configuration other than the
    present one costs `change_s * S(now)`, the training lost during the change; losing all slots costs
    `stop_s * S(now)`. Jobs of weight 1 and above are decided first, by the same rule.

    Slots of one kind are interchangeable, so the paper's program over nodes is one over counts once its
    constant for "no migration" is large enough. The published constant forbids changes by more than about
    half of the pool.
    """

    name: ClassVar[str] = "idle-fill"
    forward_s: float = parameter(10.0, "Seconds within which a change must pay off (T_fwd).", above=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices for jobs of usual weight, then for opportunistic jobs on the slots left."""
        scaling = scaling_factors(given)
        now = np.where(kept(given), scaling, 0.0).sum(axis=1)
        cost, stop = finite(given.change_s) * now, stop_cost_s(given) * now
        worth = self.forward_s * scaling - np.where(changed(given), cost[:, None], 0.0)
        utility = np.where(scaling > 0, worth, -np.inf)
        idle = np.where(holding(given), -stop, 0.0)
        problem = Problem(utility=utility, idle=idle, rows=given.rows, current=given.current)
        first = finite(given.weight, otherwise=1.0) >= USUAL_WEIGHT
        solution = solve(_only(problem, first))
        if not first.all():
            rest = replace(problem, rows=_remaining_rows(solution.chosen, given.rows))
            solution = _joined(first, solution, solve(_only(rest, ~first)))
        return Choices(
            chosen=solution.chosen,
            utility=utility,
            idle=idle,
            unit="slot-seconds of training",
            solution=solution,
        )


def _only(problem: Problem, jobs: BoolArray) -> Problem:
    """Return the problem of the marked jobs. The other jobs get nothing, which is worth 0."""
    return replace(
        problem,
        utility=np.where(jobs[:, None], problem.utility, -np.inf),
        idle=np.where(jobs, problem.idle, 0.0),
        current=np.where(jobs, problem.current, NOTHING),
    )


def _remaining_rows(chosen: IntArray, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows with the capacity that these choices leave."""
    left = []
    for row in rows:
        takes = chosen != NOTHING if row.jobs is None else (chosen != NOTHING) & row.jobs
        left.append(replace(row, capacity=max(0.0, row.capacity - row.demand[chosen[takes]].sum())))
    return tuple(left)


def _joined(first: BoolArray, usual: Solution, opportunistic: Solution) -> Solution:
    """Return both solutions as one. The price of a row that binds for the usual jobs is theirs."""
    return Solution(
        chosen=np.where(first, usual.chosen, opportunistic.chosen),
        objective=usual.objective + opportunistic.objective,
        bound=usual.bound + opportunistic.bound,
        prices=np.where(usual.prices > 0, usual.prices, opportunistic.prices),
        status=max(usual.status, opportunistic.status, key=_STATUSES.index),
    )
