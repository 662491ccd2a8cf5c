"""Pollux (Qiao et al., OSDI'21): a p-mean of speedups over each job's fair share, solved exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import (
    at_fair_share,
    changed,
    restart_factor,
    usable_goodput,
    weights,
)

_NEARLY_NOTHING = 1e-3
"""Their addition to each speedup, so that a job without slots has a finite, very large cost."""


@dataclass(frozen=True, slots=True)
class Pollux:
    """Evens out speedups over the fair share, by their p-mean.

    Maximises FITNESS = (mean of (speedup + 0.001) ** p) ** (1 / p) (section 4.2). The mean is separable, so for p
    below 0 that is to minimise the sum of (speedup + 0.001) ** p: the exact optimum where they search genetically.
    The speedup is goodput over the best goodput on ceil(slots / jobs) slots, times the restart factor where it changes.
    Weights, which Pollux lacks, multiply the terms.
    """

    name: ClassVar[str] = "pollux"
    p: float = parameter(
        -1.0, "Exponent of the mean: the lower, the more the worst-off count.", below=0, at_least=-8
    )
    restart_s: float = parameter(30.0, "Seconds that a change is taken to cost.", at_least=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        speedup = goodput / at_fair_share(given)[:, None]
        speedup = np.where(
            changed(given), restart_factor(given, given.age_s, self.restart_s)[:, None] * speedup, speedup
        )
        weight = weights(given)
        utility = np.where(goodput > 0, -weight[:, None] * (speedup + _NEARLY_NOTHING) ** self.p, -np.inf)
        return solved(given, solve, utility, -weight * _NEARLY_NOTHING**self.p, "fitness")
