"""Choice of the configurations that a search visits: full, partial and no search of Scavenger (section IV). Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np

from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, IntArray

Mode = Literal["full", "partial", "none"]


def visits_of(mode: Mode, configurations: Configurations, allowed: BoolArray, batch: IntArray) -> BoolArray:
    """Return the mask (C,) of columns to visit: all in mode "full", none in mode "none", else those that the
    models need, per kind.

    These are the smallest and the largest size, each with the smallest and the largest `batch` (C,), and the
    smallest of several slots with the smallest batch. Compute grows linearly with the local batch, and
    synchronisation with the slots, and a single slot has none. Among columns of one kind, size and batch, which
    differ only in their market, the cheapest is visited. Mixes of kinds are not visited: they are predicted from
    their kinds.
    """
    wanted = np.zeros_like(allowed)
    if mode == "none":
        return wanted
    for kind in range(len(configurations.kinds)):
        columns = np.flatnonzero(allowed & (configurations.kind == kind) & ~configurations.mixed)
        if not columns.size:
            continue
        columns = columns[
            np.lexsort((configurations.usd_per_h[columns], batch[columns], configurations.slots[columns]))
        ]
        pairs = np.stack([configurations.slots[columns], batch[columns]], axis=1)
        columns = columns[np.unique(pairs, axis=0, return_index=True)[1]]
        wanted[columns] = mode == "full" or _extreme(configurations.slots[columns], batch[columns])
    return wanted


def _extreme(slots: IntArray, batch: IntArray) -> BoolArray:
    """Return the mask (n,) of the extreme pairs of slots and batch of one kind."""
    ends = np.isin(slots, (slots.min(), slots.max()))
    several = slots == (slots[slots > 1].min() if (slots > 1).any() else slots.min())
    least, most = (np.zeros_like(ends) for _ in range(2))
    for size in np.unique(slots).tolist():
        here = slots == size
        least |= here & (batch == batch[here].min())
        most |= here & (batch == batch[here].max())
    extreme: BoolArray = (ends & (least | most)) | (several & least)
    return extreme
