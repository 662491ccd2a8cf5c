"""Least-attained-service policy (Tiresias: Gu et al., NSDI'19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import served
from service.domain.policies.framework.speedup import finite


@dataclass(frozen=True, slots=True)
class Las:
    """Least attained service first: jobs with the fewest slot-seconds so far, at the requested size.

    Queues are discrete (section 3.3). A job falls into the next queue when its slot-seconds pass a limit.
    Within a queue the earlier submission goes first, so that jobs do not take turns all the time. A job that
    has waited `promote_knob` times as long as it ran returns to the first queue.
    """

    name: ClassVar[str] = "las"
    queue_limits_slot_s: tuple[float, ...] = parameter(
        (3250.0, 7200.0), "Slot-seconds at which a job falls into the next queue.", at_least=0
    )
    promote_knob: float = parameter(
        8.0,
        "Maximum wait before a job returns to the first queue, as a multiple of its run time.",
        above=0,
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """Return the choices by queue, then by submission within a queue."""
        queue = np.searchsorted(np.sort(self.queue_limits_slot_s), finite(given.served_slot_s), side="right")
        ran_s = finite(given.served_s).sum(axis=1)
        starved = finite(given.waited_s) > self.promote_knob * ran_s
        return served(given, np.argsort(np.where(starved, 0, queue), kind="stable"))
