"""Statistical efficiency of a batch, predicted from gradient noise. Pure.

The noise scale phi, in samples, is the trace of the covariance of one sample's gradient over the squared norm
of the mean gradient. A step of batch M makes the progress of (M / m0) * efficiency steps of the reference m0
(Pollux, OSDI'21, section 3.1; AdaScale's gain), with efficiency = (phi + m0) / (phi + M).
"""

from __future__ import annotations

import numpy as np

from service.domain.perf.throughput import LEAST, MOST, Numbers
from service.domain.shared.arrays import FloatArray


def efficiency(batch: Numbers, reference: Numbers, noise: Numbers) -> FloatArray:
    """Return the progress of a sample in steps of `batch`, relative to one in steps of `reference`; all broadcast.

    `noise` is phi. Where it is unknown (NaN, negative), neither a larger nor a smaller batch gains anything,
    which is the cautious bound. The result is 0 where a batch is not valid.
    """
    batch, reference, noise = (np.asarray(one, float) for one in (batch, reference, noise))
    valid = (batch >= LEAST) & (batch <= MOST) & (reference >= LEAST) & (reference <= MOST)
    ratio = np.where(valid, batch, 1.0) / np.where(valid, reference, 1.0)
    known = noise >= 0
    # Noise in units of the reference. A noise scale beyond any batch counts as infinite.
    relative = np.where(known, np.minimum(noise, MOST**2), 0.0) / np.where(valid, reference, 1.0)
    predicted = np.where(known, (relative + 1) / (relative + ratio), np.minimum(1.0, 1 / ratio))
    result: FloatArray = np.where(valid, predicted, 0.0)
    return result
