"""First-come, first-served policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import served
from service.domain.policies.framework.speedup import holding


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served at the requested size; running jobs stay and no job overtakes another.

    A job that does not fit makes all later jobs wait (no backfill), so that a large job gets its turn.
    """

    name: ClassVar[str] = "fifo"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """Return the choices of running jobs first, then of waiting jobs by submission."""
        return served(given, np.argsort(~holding(given), kind="stable"), blocking=True)
