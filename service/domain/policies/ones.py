"""ONES (Bian et al., SC'21): all slots taken, by the jobs with the least remaining GPU-time, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.arrays import BoolArray, FloatArray
from service.domain.policies.counts import solved_by_counts
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.speedup import finite, kept, usable_goodput

_FILL = 2.0
"""What a taken slot is worth, against the most remaining GPU-time that it could add."""
_SIZE_LIMIT = 4.0
"""Times the requested size that a job may have, where sizes are limited."""


@dataclass(frozen=True, slots=True)
class Ones:
    """Minimises the remaining GPU-time of the jobs that have slots, with as many slots taken as can be.

    The remaining GPU-time of n slots is n * remaining / goodput(n). Published is its sum over the scheduled jobs
    alone, by which an empty schedule is best; that the pool is full is therefore a constraint. Sizes are limited as
    theirs, else the pool is filled by making jobs that are about to end as wide as can be. It is exact on one
    device kind; with more kinds or rows that bind, a taken slot is worth twice the remaining GPU-time that any could
    add. Theirs searches genetically and samples the remaining work; here a job of unknown length has as much
    GPU-time before it as behind it.
    """

    name: ClassVar[str] = "ones"
    limit_sizes: float = parameter(
        1.0,
        "1: a job at most doubles, up to four times its requested size; 0: any size.",
        at_least=0,
        at_most=1,
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        goodput = usable_goodput(given)
        if self.limit_sizes:
            goodput = np.where(_within_limits(given, goodput), goodput, 0.0)
        slots = given.configurations.slots
        left = _remaining_slot_s(given, goodput)
        per_slot = left / np.maximum(slots, 1)
        worth = _FILL * max(1.0, np.where(goodput > 0, per_slot, 0.0).max(initial=0.0))
        utility = np.where(goodput > 0, worth * slots - left, -np.inf)
        return solved_by_counts(given, solve, utility, np.zeros(len(goodput)), "slot-seconds", fill=True)


def _remaining_slot_s(given: RoundInput, goodput: FloatArray) -> FloatArray:
    """(J, C) slot-seconds to the end of each job by configuration; 0 where it cannot run.

    Unknown remaining work is what the slot-seconds so far would do at the most efficient configuration.
    """
    slots = np.maximum(given.configurations.slots, 1)
    most_efficient = (goodput / slots).max(axis=1, initial=0.0)
    known = np.isfinite(given.remaining) & (given.remaining >= 0)
    remaining = np.where(known, finite(given.remaining), finite(given.served_slot_s) * most_efficient)
    return np.where(goodput > 0, slots * remaining[:, None] / np.where(goodput > 0, goodput, 1.0), 0.0)


def _within_limits(given: RoundInput, goodput: FloatArray) -> BoolArray:
    """(J, C) the sizes up to twice the present one and four times the requested one; the smallest is always allowed."""
    slots = given.configurations.slots[None, :]
    smallest = np.where(goodput > 0, slots, np.inf).min(axis=1, initial=np.inf)
    now = np.where(kept(given), slots, 0).sum(axis=1)
    most = np.minimum(2.0 * now, _SIZE_LIMIT * given.requested_slots)
    return np.asarray(slots <= np.maximum(most, smallest)[:, None])
