"""Accuracy of predictions, compared with later measurements. Pure.

A prediction is a median with a lower and an upper bound (P10, P90) of samples per second, or of any positive
quantity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Accuracy of the predictions of each owner (G,), NaN for an owner without a prediction that can be scored.

    Attributes:
        count: Number of predictions that were scored.
        median_ratio: Median of predicted / measured. Above 1, predictions are too optimistic.
        median_error: Median of |predicted / measured - 1|.
        p90_error: 90th percentile of |predicted / measured - 1|.
        coverage: Share of measurements inside P10..P90, of the predictions with bounds. Calibrated bounds give 0.8.
    """

    count: IntArray
    median_ratio: FloatArray
    median_error: FloatArray
    p90_error: FloatArray
    coverage: FloatArray


def error_ratio(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return predicted / measured, NaN where either is not a positive finite number."""
    predicted, measured = np.asarray(predicted, float), np.asarray(measured, float)
    scored = np.isfinite(predicted) & np.isfinite(measured) & (predicted > 0) & (measured > 0)
    with np.errstate(over="ignore"):
        ratio = np.divide(predicted, measured, out=np.full(scored.shape, np.nan), where=scored)
    return np.where(np.isfinite(ratio), ratio, np.nan)


def inside(low: FloatArray, high: FloatArray, measured: FloatArray) -> FloatArray:
    """Return 1 where the measurement is within its bounds, 0 where it is not, NaN where one of them is not valid."""
    low, high, measured = np.asarray(low, float), np.asarray(high, float), np.asarray(measured, float)
    known = np.isfinite(low) & np.isfinite(high) & np.isfinite(measured) & (low > 0) & (low <= high)
    known &= measured > 0
    return np.where(known, (low <= measured) & (measured <= high), np.nan)


def score(owner: IntArray, owners: int, ratio: FloatArray, hit: FloatArray) -> Scores:
    """Return the scores of each owner, from (N,) owner indices below `owners`, error ratios and hits (`inside`).

    For the scores of all predictions together, give every prediction the owner 0. Raise ValueError for an
    owner out of range.
    """
    owner = np.asarray(owner, np.int64)
    if owner.size and (owner.min() < 0 or owner.max() >= owners):
        raise ValueError("a prediction has an owner out of range")
    scored = np.isfinite(ratio)
    bounded = scored & np.isfinite(hit)
    error = np.abs(ratio - 1.0)
    hits = np.bincount(owner[bounded], weights=hit[bounded], minlength=owners)
    tries = np.bincount(owner[bounded], minlength=owners)
    return Scores(
        count=np.bincount(owner[scored], minlength=owners),
        median_ratio=_quantile(owner, owners, ratio, scored, 0.5),
        median_error=_quantile(owner, owners, error, scored, 0.5),
        p90_error=_quantile(owner, owners, error, scored, 0.9),
        coverage=np.divide(hits, tries, out=np.full(owners, np.nan), where=tries > 0),
    )


def _quantile(owner: IntArray, owners: int, values: FloatArray, valid: BoolArray, share: float) -> FloatArray:
    """Return the quantile of each owner's values, with linear interpolation, for all owners at once."""
    owner, values = owner[valid], values[valid]
    values = values[np.lexsort((values, owner))]
    count = np.bincount(owner, minlength=owners)
    some = count > 0
    first = np.cumsum(count)[some] - count[some]
    place = share * (count[some] - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, count[some] - 1)
    result = np.full(owners, np.nan)
    result[some] = values[first + below] + (place - below) * (values[first + above] - values[first + below])
    return result
