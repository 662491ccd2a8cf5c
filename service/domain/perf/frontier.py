"""The Pareto front of time and cost, and its knee. Pure; for the configurations of one job."""

from __future__ import annotations

import numpy as np

from service.domain.arrays import FloatArray, IntArray

_EVEN = 1e-9
"""Distances from the chord that differ by less are one distance: rounding must not choose."""


def pareto_front(time_s: FloatArray, cost_usd: FloatArray) -> IntArray:
    """Indices of the points that no other point beats in both, from the fastest to the cheapest.

    A point that is infinite, NaN or negative in either is none; of equal points the first counts.
    """
    time_s, cost_usd = np.asarray(time_s, float), np.asarray(cost_usd, float)
    real = np.flatnonzero(np.isfinite(time_s) & np.isfinite(cost_usd) & (time_s >= 0) & (cost_usd >= 0))
    order = real[np.lexsort((real, cost_usd[real], time_s[real]))]
    cost = cost_usd[order]
    cheapest_so_far = np.minimum.accumulate(np.append(np.inf, cost))[:-1]
    return order[cost < cheapest_so_far]


def knee(time_s: FloatArray, cost_usd: FloatArray) -> int | None:
    """Index of the point of the front from which more speed begins to cost much; None where there is no point.

    With both axes scaled to 0..1 over the front it is the point farthest below the chord between the fastest and the
    cheapest (Kneedle, which Scavenger, CCGrid'23, takes). Where none is below it (one or two points, a straight or a
    bulging front) or several are as far, the smallest product of time and cost decides, so that one per cent of either
    counts the same; then the faster.
    """
    front = pareto_front(time_s, cost_usd)
    if not front.size:
        return None
    time, cost = np.asarray(time_s, float)[front], np.asarray(cost_usd, float)[front]
    # The chord runs from (0, 1) to (1, 0).
    below = 1.0 - _scaled(time) - _scaled(cost)
    farthest = np.flatnonzero(below >= below.max() - _EVEN)
    with np.errstate(divide="ignore"):
        product = np.log(time[farthest]) + np.log(cost[farthest])
    return int(front[farthest[np.argmin(product)]])


def _scaled(values: FloatArray) -> FloatArray:
    least, most = values.min(), values.max()
    if most <= least:
        return np.zeros_like(values)
    scaled: FloatArray = (values - least) / (most - least)
    return scaled
