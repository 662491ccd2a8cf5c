"""First come, first served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.queueing import served
from service.domain.policies.speedup import holding


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serves jobs by submit at the size they asked for; running jobs stay, nobody overtakes.

    A job that does not fit makes all later ones wait (no backfill), so that a large job gets its turn.
    """

    name: ClassVar[str] = "fifo"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """See `Policy.choose`."""
        return served(given, np.argsort(~holding(given), kind="stable"), blocking=True)
