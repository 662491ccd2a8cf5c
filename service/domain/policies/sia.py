"""Sia (Jayaram Subramanya et al., SOSP'23): goodput over its row's minimum, with an exponent, unrounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import (
    changed,
    clean_goodput,
    least_goodput,
    restart_factor,
    usable_goodput,
    weights,
)

_NEARLY_NOTHING = 1e-6
"""The least ratio that is told from others, so that powers stay finite."""


@dataclass(frozen=True, slots=True)
class Sia:
    """Minimises the sum of normalised goodput ** p, an idle job counting as lambda.

    Section 3.4: each job's goodput is divided by its smallest one, so that 1 is its slowest configuration, and
    multiplied by the restart factor where it changes. Their code rounds the powers to two decimals, which makes
    ties of configurations 9 % apart; here they stay as they are. Weights, which Sia lacks, multiply the terms.
    """

    name: ClassVar[str] = "sia"
    p: float = parameter(-0.5, "Exponent: the lower, the more the worst-off count.", below=0, at_least=-8)
    idle_penalty: float = parameter(1.1, "Lambda: what a job without slots counts.", at_least=0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        ratio = goodput / least_goodput(clean_goodput(given))[:, None]
        ratio = np.where(
            changed(given), restart_factor(given, given.age_s, given.change_s)[:, None] * ratio, ratio
        )
        weight = weights(given)
        power = np.maximum(ratio, _NEARLY_NOTHING) ** self.p
        utility = np.where(ratio > 0, -weight[:, None] * power, -np.inf)
        return solved(given, solve, utility, -weight * self.idle_penalty, "normalised goodput ** p")
