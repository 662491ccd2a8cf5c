"""ONES policy (Bian et al., SC'21): all slots in use, by the jobs with the least remaining GPU-time, solved
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.cluster.contention_rules import Rhythm
from service.domain.policies.framework.counts import solved_by_counts
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.speedup import finite, kept, usable_goodput
from service.domain.shared.arrays import BoolArray, FloatArray

_FILL = 2.0
"""Worth of a slot in use, relative to the largest remaining GPU-time that it could add."""
_SIZE_LIMIT = 4.0
"""Maximum ratio of a job's size to its requested size, if sizes are limited."""


@dataclass(frozen=True, slots=True)
class Ones:
    """Least remaining GPU-time of the jobs that have slots, with as many slots in use as possible.

    The remaining GPU-time of n slots is n * remaining / goodput(n). The paper minimises its sum over the
    scheduled jobs alone, for which an empty schedule is best; here a full pool is therefore a constraint.
    Sizes are limited as in the paper. Otherwise the pool would be filled by making jobs that are about to end
    as wide as possible.

    The result is exact on one device kind. With more kinds, or with more rows that bind, a slot in use is
    worth twice the remaining GPU-time that any slot could add. The authors search genetically and sample the
    remaining work; here a job of unknown length has as much GPU-time ahead as behind. They
    change all jobs together once each has trained an epoch on its slots; here a job waits for its own only.
    """

    name: ClassVar[str] = "ones"
    rhythm: ClassVar[Rhythm] = Rhythm(whole_epochs=True, in_place=True)
    limit_sizes: float = parameter(
        1.0,
        "1: a job at most doubles its size, up to four times its requested size. 0: any size.",
        at_least=0,
        at_most=1,
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices that fill the pool with the least remaining GPU-time."""
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
    """Return the slot-seconds (J, C) to the end of each job by configuration; 0 for one that cannot run.

    Remaining work that is unknown is assumed to equal the work of the slot-seconds so far in the most
    efficient configuration.
    """
    slots = np.maximum(given.configurations.slots, 1)
    most_efficient = (goodput / slots).max(axis=1, initial=0.0)
    known = np.isfinite(given.remaining) & (given.remaining >= 0)
    remaining = np.where(known, finite(given.remaining), finite(given.served_slot_s) * most_efficient)
    return np.where(goodput > 0, slots * remaining[:, None] / np.where(goodput > 0, goodput, 1.0), 0.0)


def _within_limits(given: RoundInput, goodput: FloatArray) -> BoolArray:
    """Return the sizes (J, C) up to twice the present and four times the requested one; the smallest is
    always allowed.
    """
    slots = given.configurations.slots[None, :]
    smallest = np.where(goodput > 0, slots, np.inf).min(axis=1, initial=np.inf)
    now = np.where(kept(given), slots, 0).sum(axis=1)
    most = np.minimum(2.0 * now, _SIZE_LIMIT * given.requested_slots)
    return np.asarray(slots <= np.maximum(most, smallest)[:, None])
