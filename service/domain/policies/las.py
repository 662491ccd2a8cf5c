"""Least attained service (Tiresias: Gu et al., NSDI'19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.queueing import served
from service.domain.policies.speedup import finite


@dataclass(frozen=True, slots=True)
class Las:
    """Serves jobs that have had the fewest slot-seconds first, at the size they asked for.

    Discrete queues (section 3.3): a job falls into the next one as its slot-seconds pass a limit, and within a queue
    the earlier submit goes first, so that jobs do not take turns all the time. A job that has waited `promote_knob`
    times as long as it ran returns to the first queue.
    """

    name: ClassVar[str] = "las"
    queue_limits_slot_s: tuple[float, ...] = parameter(
        (3250.0, 7200.0), "Slot-seconds at which a job falls into the next queue.", at_least=0
    )
    promote_knob: float = parameter(
        8.0,
        "How many times as long as it ran a job waits at most before it returns to the first queue.",
        above=0,
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """See `Policy.choose`."""
        queue = np.searchsorted(np.sort(self.queue_limits_slot_s), finite(given.served_slot_s), side="right")
        ran_s = finite(given.served_s).sum(axis=1)
        starved = finite(given.waited_s) > self.promote_knob * ran_s
        return served(given, np.argsort(np.where(starved, 0, queue), kind="stable"))
