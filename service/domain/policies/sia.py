"""Sia policy (Jayaram Subramanya et al., SOSP'23): the sum of powers of normalised goodput, without
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import (
    changed,
    clean_goodput,
    least_goodput,
    restart_factor,
    usable_goodput,
    weights,
)

_NEARLY_NOTHING = 1e-6
"""Lower bound of a ratio, so that its powers stay finite."""


@dataclass(frozen=True, slots=True)
class Sia:
    """Smallest sum of normalised goodput ** p, with lambda for a job without slots.

    Section 3.4: each job's goodput is divided by its smallest goodput, so that 1 is its slowest
    configuration, and multiplied by the restart factor if the job changes. The authors' code rounds the
    powers to two decimals, which makes configurations that are 9 % apart equal. This class does not round.
    Each term is multiplied by the job's weight, which the paper does not have.
    """

    name: ClassVar[str] = "sia"
    p: float = parameter(
        -0.5, "Exponent; a lower value gives more weight to the worst-off jobs.", below=0, at_least=-8
    )
    idle_penalty: float = parameter(1.1, "Lambda: the cost of a job without slots.", at_least=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the least sum of normalised goodput ** p."""
        goodput = usable_goodput(given)
        ratio = goodput / least_goodput(clean_goodput(given))[:, None]
        ratio = np.where(
            changed(given), restart_factor(given, given.age_s, given.change_s)[:, None] * ratio, ratio
        )
        weight = weights(given)
        power = np.maximum(ratio, _NEARLY_NOTHING) ** self.p
        utility = np.where(ratio > 0, -weight[:, None] * power, -np.inf)
        return solved(
            given, solve, utility, -weight * self.idle_penalty, "normalised goodput weighted by fairness"
        )
