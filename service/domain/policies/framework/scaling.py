"""Scaling factor of a job: its goodput as a multiple of that of one slot."""

from __future__ import annotations

import numpy as np

from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import clean_goodput
from service.domain.shared.arrays import FloatArray


def scaling_factors(given: RoundInput) -> FloatArray:
    """Return the goodput (J, C) relative to one slot (IBM, MASCOTS'20); 0 for a configuration that a job
    cannot have.

    The one slot is of the kind on which the job is slowest, so that a faster kind counts for more. If the
    smallest size of a job is larger than one slot, its goodput per slot is the reference.
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
