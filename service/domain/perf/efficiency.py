"""Statistical efficiency of a batch: a prediction from gradient noise, corrected by observations. Pure.

The noise scale phi, in samples, is the trace of the covariance of one sample's gradient over the squared norm
of the mean gradient. A step of batch M makes the progress of (M / m0) * efficiency steps of the reference m0
(Pollux, OSDI'21, section 3.1; AdaScale's gain), with efficiency = (phi + m0) / (phi + M).

That is a prediction. Some measured runs lose more in large batches (twice the logarithm on CIFAR-10), others
lose less. Where the learning rate does not follow the batch, the effect can have the other sign
(`batch_effect`). So the exponent of the efficiency is measured for each job, never assumed.
"""

from __future__ import annotations

import numpy as np

from service.domain.perf.throughput import LEAST, MOST, Numbers
from service.domain.shared.arrays import FloatArray, IntArray

_LEAST_EFFECT, _MOST_EFFECT = -2.0, 4.0
_BELIEF = 0.2
"""Weight of the prediction, as the sum of squared logarithms of efficiency of observations.

A sum of 0.2 is a single observation at an efficiency of 0.64. Small batches have little weight, since
observations of them are mostly noise.
"""


def noise_scale(sqr: Numbers, var: Numbers) -> FloatArray:
    """Return phi in samples, from the squared norm of the true gradient and the trace of the covariance of
    one sample's.

    Phi is infinite without a signal. It is NaN where the two define no noise scale: negative, not finite, or
    both 0.
    """
    sqr, var = np.broadcast_arrays(np.asarray(sqr, float), np.asarray(var, float))
    known = np.isfinite(sqr) & np.isfinite(var) & (sqr >= 0) & (var >= 0) & ((sqr > 0) | (var > 0))
    sqr, var = np.where(known, sqr, np.nan), np.where(known, var, np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        result: FloatArray = var / sqr
    return result


def efficiency(batch: Numbers, reference: Numbers, noise: Numbers, effect: Numbers = 1.0) -> FloatArray:
    """Return the progress of a sample in steps of `batch`, relative to one in steps of `reference`; all broadcast.

    `noise` is phi. Where it is unknown (NaN, negative), neither a larger nor a smaller batch gains anything,
    which is the cautious bound. `effect` is the exponent of `batch_effect`. The result is 0 where a batch is
    not valid.
    """
    batch, reference, noise = (np.asarray(one, float) for one in (batch, reference, noise))
    valid = (batch >= LEAST) & (batch <= MOST) & (reference >= LEAST) & (reference <= MOST)
    ratio = np.where(valid, batch, 1.0) / np.where(valid, reference, 1.0)
    known = noise >= 0
    # Noise in units of the reference. A noise scale beyond any batch counts as infinite.
    relative = np.where(known, np.minimum(noise, MOST**2), 0.0) / np.where(valid, reference, 1.0)
    predicted = np.where(known, (relative + 1) / (relative + ratio), np.minimum(1.0, 1 / ratio))
    # Most jobs have an effect of 1, and a power is slow.
    worth = (
        predicted if isinstance(effect, float) and effect == 1.0 else predicted ** np.asarray(effect, float)
    )
    result: FloatArray = np.where(valid, worth, 0.0)
    return result


def gain(batch: Numbers, reference: Numbers, noise: Numbers, effect: Numbers = 1.0) -> FloatArray:
    """Return the steps of `reference` that one step of `batch` is worth: AdaScale's factor for the learning rate."""
    worth = efficiency(batch, reference, noise, effect)
    result: FloatArray = worth * np.divide(batch, reference, out=np.zeros(worth.shape), where=worth > 0)
    return result


def countable(effect: float) -> float:
    """Return the exponent by which ranks count their progress, given the measured one.

    It is at least 0, so that a sample counts as one of the reference at most: a job never ends before it has read all
    of its epochs, however wrong the evidence is.
    """
    return max(effect, 0.0)


def batch_effect(
    owner: IntArray,
    predicted: Numbers,
    observed: Numbers,
    weight: Numbers,
    owners: int,
) -> FloatArray:
    """Return the exponents (owners,) that turn the predicted efficiency into the observed one.

    The exponent is 1 where the noise predicts correctly, greater than 1 where large batches cost more, 0
    where the batch does not matter, and negative where large batches do better.

    The arguments are flat arrays (O,). `predicted` is `efficiency` by noise alone. `observed` is the progress
    of a sample in steps of the same batch, relative to one in steps of the reference: samples to the same
    loss at the reference batch over samples at this one, or another measure of progress. `weight` is the
    trust in an observation, 1 for full trust.

    The exponents are a least-squares fit in logarithms, pulled to 1 by the weight of the prediction.
    Observations at the reference batch have no influence, and values that cannot be true are ignored.
    """
    predicted, observed, weight = (np.asarray(one, float) for one in (predicted, observed, weight))
    true = (owner >= 0) & (owner < owners) & (weight > 0) & (weight <= MOST)
    true &= np.isfinite(predicted) & (predicted > 0) & np.isfinite(observed) & (observed > 0)
    x, y, w, at = np.log(predicted[true]), np.log(observed[true]), weight[true], owner[true]
    both = np.bincount(at, w * x * y, owners) + _BELIEF
    alone = np.bincount(at, w * x * x, owners) + _BELIEF
    return np.clip(both / alone, _LEAST_EFFECT, _MOST_EFFECT)
