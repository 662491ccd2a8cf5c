"""IBM's elastic scaling (Saxena et al., MASCOTS'20): the greatest sum of scaling factors, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.arrays import BoolArray, FloatArray
from service.domain.policies.counts import solved_by_counts
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.scaling import scaling_factors
from service.domain.policies.speedup import finite, kind_capacity


@dataclass(frozen=True, slots=True)
class ElasticDp:
    """Maximises the sum of scaling factors, goodput against one slot, with something for every admitted job.

    Jobs are admitted in the order of their submits, as many as fit at their smallest size; the others wait. On one
    device kind this is their dynamic program over counts. With more kinds, or more rows that bind, the shared solver
    decides, and an admitted job without slots costs more than any one job can gain. Theirs counts the samples of every
    batch alike; goodput weighs them by efficiency. As published, a change costs nothing, and neither priority nor
    remaining work counts.
    """

    name: ClassVar[str] = "elastic-dp"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        scaling = scaling_factors(given)
        admitted = _admitted(given, scaling)
        utility = np.where((scaling > 0) & admitted[:, None], scaling, -np.inf)
        idle = np.where(admitted, -1.0 - scaling.max(initial=0.0), 0.0)
        return solved_by_counts(given, solve, utility, idle, "scaling factors", must_have=admitted)


def _admitted(given: RoundInput, scaling: FloatArray) -> BoolArray:
    """(J,) which jobs have a place: the first ones of the queue, as many as fit at their smallest sizes.

    A job that fits nowhere, not even alone, does not hold up those behind it.
    """
    capacity, kind = kind_capacity(given), given.configurations.kind
    demand = np.zeros(len(kind))
    for index, row in enumerate(given.rows[: len(capacity)]):
        demand = np.where(kind == index, finite(row.demand, otherwise=np.inf), demand)
    fits = (scaling > 0) & (demand <= capacity[kind])
    smallest = np.where(fits, demand, np.inf).min(axis=1, initial=np.inf)
    runs = np.isfinite(smallest)
    return np.asarray(runs & (np.cumsum(np.where(runs, smallest, 0.0)) <= capacity.sum()))
