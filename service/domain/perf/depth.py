"""Step times with structured partial back-propagation, from those with whole gradients. Pure.

Compute shrinks with the depth, and synchronisation does not: every rank still gets all gradients. The progress of a sample counts
as much as with whole gradients, although the first layers see fewer samples.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from headway.contract.values.depths import step_cost
from service.domain.shared.arrays import FloatArray, NumberArray


def compute_share(min_depth: FloatArray, slots: NumberArray) -> FloatArray:
    """Return the compute of a step relative to that with whole gradients, of the broadcast shape.

    `min_depth` is NaN where gradients are whole.
    """
    depths, sizes = np.broadcast_arrays(min_depth, slots)
    result = np.ones(depths.shape)
    for at in zip(*np.nonzero(~np.isnan(depths)), strict=True):
        result[at] = _share(float(depths[at]), int(sizes[at]))
    return result


def whole_step_s(step_s: float, sync_s: float | None, min_depth: float | None, slots: int) -> float:
    """Return the seconds that a measured step would take with whole gradients.

    `sync_s` is the part without compute; None: unknown, and taken as none.
    """
    if min_depth is None:
        return step_s
    waited_s = min(max(sync_s or 0.0, 0.0), step_s)
    return waited_s + (step_s - waited_s) / _share(min_depth, slots)


@lru_cache(maxsize=4096)
def _share(min_depth: float, slots: int) -> float:
    return step_cost(min_depth, slots)
