"""What a sample is worth in a batch of another size: from gradient noise, corrected by what was observed. Pure.

The noise scale phi, in samples, is the trace of the covariance of one sample's gradient over the squared norm of the mean
gradient. Steps of batch M make progress like (M / m0) * efficiency steps of the reference m0 (Pollux, OSDI'21, section 3.1;
AdaScale's gain), with efficiency = (phi + m0) / (phi + M).

That is a prediction: measured runs lose more in large batches than it says (twice the logarithm on CIFAR-10), others less,
and where the learning rate does not follow the batch the effect can have the other sign (`batch_effect`). So the exponent
of the efficiency is measured for each job, never assumed.
"""

from __future__ import annotations

import numpy as np

from service.domain.arrays import FloatArray, IntArray
from service.domain.perf.throughput import LEAST, MOST, Numbers

_LEAST_EFFECT, _MOST_EFFECT = -2.0, 4.0
_BELIEF = 0.2
"""How much the noise is believed: as much as observations whose squared logarithms of efficiency sum up to this, which is
one at an efficiency of 0.64. Small batches say little: what was observed there is mostly chance."""


def noise_scale(sqr: Numbers, var: Numbers) -> FloatArray:
    """Phi in samples, from the squared norm of the true gradient and the trace of the covariance of one sample's.

    Infinite where no signal is seen; NaN where the two say nothing: negative, not finite, both 0.
    """
    sqr, var = np.broadcast_arrays(np.asarray(sqr, float), np.asarray(var, float))
    known = np.isfinite(sqr) & np.isfinite(var) & (sqr >= 0) & (var >= 0) & ((sqr > 0) | (var > 0))
    sqr, var = np.where(known, sqr, np.nan), np.where(known, var, np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        result: FloatArray = var / sqr
    return result


def efficiency(batch: Numbers, reference: Numbers, noise: Numbers, effect: Numbers = 1.0) -> FloatArray:
    """What a sample in steps of `batch` is worth, against one in steps of `reference`; all broadcast.

    `noise` is phi; where it is not known (NaN, negative) a larger batch is taken to gain nothing and a smaller one not to
    either: the cautious end of what can be. `effect` is the exponent of `batch_effect`. 0 where a batch is none.
    """
    batch, reference, noise = (np.asarray(one, float) for one in (batch, reference, noise))
    valid = (batch >= LEAST) & (batch <= MOST) & (reference >= LEAST) & (reference <= MOST)
    ratio = np.where(valid, batch, 1.0) / np.where(valid, reference, 1.0)
    known = noise >= 0
    # In units of the reference; a noise beyond any batch is as good as infinite.
    relative = np.where(known, np.minimum(noise, MOST**2), 0.0) / np.where(valid, reference, 1.0)
    predicted = np.where(known, (relative + 1) / (relative + ratio), np.minimum(1.0, 1 / ratio))
    result: FloatArray = np.where(valid, predicted ** np.asarray(effect, float), 0.0)
    return result


def gain(batch: Numbers, reference: Numbers, noise: Numbers, effect: Numbers = 1.0) -> FloatArray:
    """Steps of `reference` that one step of `batch` is worth: AdaScale's factor for the learning rate."""
    worth = efficiency(batch, reference, noise, effect)
    result: FloatArray = worth * np.divide(batch, reference, out=np.zeros(worth.shape), where=worth > 0)
    return result


def batch_effect(
    owner: IntArray,
    predicted: Numbers,
    observed: Numbers,
    weight: Numbers,
    owners: int,
) -> FloatArray:
    """(owners,) exponents that turn the predicted efficiency into the observed one: 1 where the noise is right, more where
    large batches cost more than it says, 0 where the batch does not matter, negative where large batches do better.

    Flat arrays (O,): `predicted` is `efficiency` by noise alone, `observed` the progress of a sample in steps of the
    same batch against one in steps of the reference, from whatever shows progress: samples to reach the same loss at the
    reference batch over samples at this one. `weight` is how far one is to be believed, 1 for a full observation.

    A least squares fit in logarithms, pulled to 1 by how much the noise is believed. Observations at the reference batch
    itself say nothing, and what cannot be true is ignored.
    """
    predicted, observed, weight = (np.asarray(one, float) for one in (predicted, observed, weight))
    true = (owner >= 0) & (owner < owners) & (weight > 0) & (weight <= MOST)
    true &= np.isfinite(predicted) & (predicted > 0) & np.isfinite(observed) & (observed > 0)
    x, y, w, at = np.log(predicted[true]), np.log(observed[true]), weight[true], owner[true]
    both = np.bincount(at, w * x * y, owners) + _BELIEF
    alone = np.bincount(at, w * x * x, owners) + _BELIEF
    return np.clip(both / alone, _LEAST_EFFECT, _MOST_EFFECT)
