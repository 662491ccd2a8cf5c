"""The scaling factor of a job: how many slots' worth it trains with."""

from __future__ import annotations

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.policies.policy import RoundInput
from service.domain.policies.speedup import clean_goodput


def scaling_factors(given: RoundInput) -> FloatArray:
    """(J, C) goodput against one slot (IBM, MASCOTS'20), 0 where a job cannot run or may not have the configuration.

    One slot is one of the kind on which the job is slowest, so that a faster kind counts for more. A job whose
    smallest size is larger than one slot is measured by the share of one slot in it.
    """
    goodput = clean_goodput(given)
    slots = np.maximum(given.configurations.slots, 1)
    one_slot = np.full(len(goodput), np.inf)
    for kind in range(len(given.configurations.kinds)):
        runs = (goodput > 0) & (given.configurations.kind == kind)
        smallest = np.where(runs, slots, np.inf).min(axis=1, initial=np.inf)
        best = np.where(runs & (slots == smallest[:, None]), goodput / slots, 0.0).max(axis=1, initial=0.0)
        one_slot = np.where(best > 0, np.minimum(one_slot, best), one_slot)
    return np.where(given.allowed, goodput / one_slot[:, None], 0.0)
