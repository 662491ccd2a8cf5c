"""Pollux policy (Qiao et al., OSDI'21): a p-mean of speedups over each job's fair share, solved exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import (
    at_fair_share,
    changed,
    restart_factor,
    usable_goodput,
    weights,
)

_NEARLY_NOTHING = 1e-3
"""Term added to each speedup, as in the paper, so that a job without slots has a finite, very large cost."""


@dataclass(frozen=True, slots=True)
class Pollux:
    """Even speedups over the fair share, by their p-mean.

    Maximises FITNESS = (mean of (speedup + 0.001) ** p) ** (1 / p) (section 4.2). The mean is separable. For
    p below 0 this is to minimise the sum of (speedup + 0.001) ** p, which gives the exact optimum where the
    authors search genetically. The speedup is goodput over the best goodput on ceil(slots / jobs) slots,
    times the restart factor if the job changes. Each term is multiplied by the job's weight, which the paper
    does not have.
    """

    name: ClassVar[str] = "pollux"
    p: float = parameter(
        -1.0,
        "Exponent of the mean; a lower value gives more weight to the worst-off jobs.",
        below=0,
        at_least=-8,
    )
    restart_s: float = parameter(30.0, "Assumed cost of a change, in seconds.", at_least=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the greatest p-mean of speedups."""
        goodput = usable_goodput(given)
        speedup = goodput / at_fair_share(given)[:, None]
        speedup = np.where(
            changed(given), restart_factor(given, given.age_s, self.restart_s)[:, None] * speedup, speedup
        )
        weight = weights(given)
        utility = np.where(goodput > 0, -weight[:, None] * (speedup + _NEARLY_NOTHING) ** self.p, -np.inf)
        return solved(given, solve, utility, -weight * _NEARLY_NOTHING**self.p, "fitness")
