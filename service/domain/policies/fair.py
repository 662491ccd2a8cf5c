"""Equal-share policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import kept, usable_goodput, weights

_IDLE_SLOTS = 0.25
"""Number of slots that stands for having none: a first slot helps a job more than doubling another's only slot."""
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Fair:
    """Equal numbers of slots for all jobs in proportion to their weights, however well they use them.

    Minimises the sum of weight * (slots / weight) ** p, p below 0. The lower p is, the closer the result is
    to max-min fairness. A millionth of a term decides between equal sizes: it prefers the device kind with
    more goodput and the present configuration.
    """

    name: ClassVar[str] = "fair"
    p: float = parameter(
        -1.0,
        "Exponent; a lower value gives more weight to the job with the fewest slots.",
        below=0,
        at_least=-8,
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the least sum of weight * (slots / weight) ** p."""
        goodput = usable_goodput(given)
        weight = np.maximum(weights(given), _TIE)[:, None]
        slots = np.maximum(given.configurations.slots, _IDLE_SLOTS)[None, :]
        relative = goodput / np.maximum(goodput.max(axis=1, initial=0.0), _TIE)[:, None]
        cost = weight * (slots / weight) ** self.p * (1 - _TIE * relative - _TIE * kept(given))
        idle = weight[:, 0] * (_IDLE_SLOTS / weight[:, 0]) ** self.p
        return solved(
            given, solve, np.where(goodput > 0, -cost, -np.inf), -idle, "slots weighted by fairness"
        )
