"""Elastic-scaling policy of IBM (Saxena et al., MASCOTS'20): the greatest sum of scaling factors, solved
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.policies.framework.counts import solved_by_counts
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.scaling import scaling_factors
from service.domain.policies.framework.speedup import finite, kind_capacity
from service.domain.shared.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class ElasticDp:
    """Greatest sum of scaling factors (goodput relative to one slot), with slots for every admitted job.

    Jobs are admitted in the order of their submission, as many as fit at their smallest size; the others
    wait. On one device kind this is the dynamic program over counts of the paper. With more kinds, or with
    more rows that bind, the shared solver decides, and an admitted job without slots costs more than any one
    job can gain.

    The paper counts the samples of every batch alike; goodput weighs them by efficiency. As in the paper, a
    change costs nothing, and neither priority nor remaining work counts.
    """

    name: ClassVar[str] = "elastic-dp"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the greatest sum of scaling factors."""
        scaling = scaling_factors(given)
        admitted = _admitted(given, scaling)
        utility = np.where((scaling > 0) & admitted[:, None], scaling, -np.inf)
        idle = np.where(admitted, -1.0 - scaling.max(initial=0.0), 0.0)
        return solved_by_counts(given, solve, utility, idle, "scaling factors", must_have=admitted)


def _admitted(given: RoundInput, scaling: FloatArray) -> BoolArray:
    """Return the admitted jobs (J,): jobs with a seat, then the queue as far as the jobs fit at their
    smallest sizes.

    A job that does not even fit alone does not block the jobs behind it.
    """
    capacity = kind_capacity(given)
    demands = [finite(row.demand, otherwise=np.inf) for row in given.rows[: len(capacity)]]
    by_kind = np.array(demands).reshape(len(demands), len(given.configurations.slots))
    demand = by_kind.sum(axis=0)
    fits = (scaling > 0) & (by_kind <= capacity[: len(demands), None]).all(axis=0)
    smallest = np.where(fits, demand, np.inf).min(axis=1, initial=np.inf)
    runs = np.isfinite(smallest)
    seated = np.zeros_like(runs) if given.seats is None else runs & (given.seats != NOTHING)
    order = np.argsort(~seated, kind="stable")
    fitting = np.cumsum(np.where(runs, smallest, 0.0)[order]) <= capacity.sum()
    admitted = np.zeros_like(runs)
    admitted[order] = fitting
    return np.asarray(runs & (admitted | seated))
