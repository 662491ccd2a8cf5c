"""BFTrainer (Liu et al., 2106.12091): opportunistic jobs on the slots that others leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution, Solve
from service.domain.arrays import BoolArray, IntArray
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.scaling import scaling_factors
from service.domain.policies.speedup import changed, finite, holding, kept

USUAL_WEIGHT = 1.0
"""Jobs that weigh less are opportunistic."""
_STATUSES = ("optimal", "within_gap", "limit")


@dataclass(frozen=True, slots=True)
class IdleFill:
    """Fills the slots that jobs of usual weight leave with those of a lower weight, where a change pays soon.

    A configuration is worth `forward_s * S(n)` less `change_s * S(now)` when it is another one than now: what is
    trained in the next seconds, less what would have been trained during the change; S is the scaling factor. To
    lose all slots is such a change. Jobs of weight 1 and above are decided first, by the same rule. Slots of a kind
    are alike, so that the published program over nodes is one over counts, once its constant for "no migration" is
    large enough: as published, it forbids changes by more than about half of the pool.
    """

    name: ClassVar[str] = "idle-fill"
    forward_s: float = parameter(10.0, "Seconds within which a change must pay: T_fwd.", above=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        scaling = scaling_factors(given)
        now = np.where(kept(given), scaling, 0.0).sum(axis=1)
        cost = finite(given.change_s) * now
        worth = self.forward_s * scaling - np.where(changed(given), cost[:, None], 0.0)
        utility = np.where(scaling > 0, worth, -np.inf)
        idle = np.where(holding(given), -cost, 0.0)
        problem = Problem(utility=utility, idle=idle, rows=given.rows, current=given.current)
        first = finite(given.weight, otherwise=1.0) >= USUAL_WEIGHT
        solution = solve(_only(problem, first))
        if not first.all():
            rest = replace(problem, rows=_left_by(solution.chosen, given.rows))
            solution = _joined(first, solution, solve(_only(rest, ~first)))
        return Choices(
            chosen=solution.chosen,
            utility=utility,
            idle=idle,
            unit="slot-seconds of training",
            solution=solution,
        )


def _only(problem: Problem, jobs: BoolArray) -> Problem:
    """The problem of these jobs; the others get nothing, which is worth nothing."""
    return replace(
        problem,
        utility=np.where(jobs[:, None], problem.utility, -np.inf),
        idle=np.where(jobs, problem.idle, 0.0),
        current=np.where(jobs, problem.current, NOTHING),
    )


def _left_by(chosen: IntArray, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows with what these choices leave of them."""
    left = []
    for row in rows:
        takes = chosen != NOTHING if row.jobs is None else (chosen != NOTHING) & row.jobs
        left.append(replace(row, capacity=max(0.0, row.capacity - row.demand[chosen[takes]].sum())))
    return tuple(left)


def _joined(first: BoolArray, usual: Solution, opportunistic: Solution) -> Solution:
    """Both solutions as one. A row that binds for the usual jobs has their price."""
    return Solution(
        chosen=np.where(first, usual.chosen, opportunistic.chosen),
        objective=usual.objective + opportunistic.objective,
        bound=usual.bound + opportunistic.bound,
        prices=np.where(usual.prices > 0, usual.prices, opportunistic.prices),
        status=max(usual.status, opportunistic.status, key=_STATUSES.index),
    )
