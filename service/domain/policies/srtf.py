"""Shortest-remaining-time-first policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import requested_columns, served
from service.domain.policies.framework.speedup import best_where, finite, remaining_s, usable_goodput


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first at the requested size, with preemption of longer jobs.

    The remaining time is that on the best device kind. A job of unknown length counts as being as far from
    its end as from its start.
    """

    name: ClassVar[str] = "srtf"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """Return the choices in ascending order of the remaining time."""
        best = best_where(usable_goodput(given), requested_columns(given))
        return served(
            given, np.argsort(remaining_s(given, best, finite(given.served_s).sum(axis=1)), kind="stable")
        )
