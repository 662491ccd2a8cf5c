"""Equal shares of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import kept, usable_goodput, weights

_IDLE_SLOTS = 0.25
"""What having nothing counts as: giving a job its first slot helps more than doubling another's only one."""
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Fair:
    """Gives every job the same number of slots, in proportion to its weight, however well it uses them.

    Minimises the sum of weight * (slots / weight) ** p, p below 0; the lower p, the closer to max-min. A millionth
    of a term decides between equal sizes: the device kind with more goodput, and not to change.
    """

    name: ClassVar[str] = "fair"
    p: float = parameter(
        -1.0, "Exponent: the lower, the more the job with the fewest slots counts.", below=0, at_least=-8
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        weight = np.maximum(weights(given), _TIE)[:, None]
        slots = np.maximum(given.configurations.slots, _IDLE_SLOTS)[None, :]
        relative = goodput / np.maximum(goodput.max(axis=1, initial=0.0), _TIE)[:, None]
        cost = weight * (slots / weight) ** self.p * (1 - _TIE * relative - _TIE * kept(given))
        idle = weight[:, 0] * (_IDLE_SLOTS / weight[:, 0]) ** self.p
        return solved(given, solve, np.where(goodput > 0, -cost, -np.inf), -idle, "slots ** p")
