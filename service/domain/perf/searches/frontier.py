"""Pareto front of time and cost, and its knee. Pure; for the configurations of one job."""

from __future__ import annotations

from typing import Literal

import numpy as np

from service.domain.shared.arrays import FloatArray, IntArray

Objective = Literal["time", "cost", "balanced"]
_EVEN = 1e-9
"""Distances from the chord that differ by less count as equal, so that rounding does not decide."""


def pareto_front(time_s: FloatArray, cost_usd: FloatArray) -> IntArray:
    """Return the indices of the points that no other point beats in both, from the fastest to the cheapest.

    Points that are infinite, NaN or negative in either quantity are ignored. The first of equal points
    counts.
    """
    time_s, cost_usd = np.asarray(time_s, float), np.asarray(cost_usd, float)
    real = np.flatnonzero(np.isfinite(time_s) & np.isfinite(cost_usd) & (time_s >= 0) & (cost_usd >= 0))
    order = real[np.lexsort((real, cost_usd[real], time_s[real]))]
    cost = cost_usd[order]
    cheapest_so_far = np.minimum.accumulate(np.append(np.inf, cost))[:-1]
    return order[cost < cheapest_so_far]


def knee(time_s: FloatArray, cost_usd: FloatArray) -> int | None:
    """Return the index of the point of the front from which more speed begins to cost much, or None without a point.

    With both axes scaled to 0..1 over the front, the knee is the point farthest below the chord between the
    fastest and the cheapest point (Kneedle, as Scavenger, CCGrid'23, uses it). If no point is below the chord
    (one or two points, a straight or a concave front), or if several are equally far, the smallest product of
    time and cost decides. One per cent of either then counts the same. If the products are equal too, the
    faster point wins.
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


def choose(time_s: FloatArray, cost_usd: FloatArray, objective: Objective) -> int | None:
    """Return the index of the fastest, the cheapest or the knee; None if no point is finite in both.

    A tie goes to the point that is better in the other quantity, then to the first one.
    """
    finite = np.isfinite(time_s) & np.isfinite(cost_usd)
    if not finite.any():
        return None
    time_s, cost_usd = (np.where(finite, one, np.inf) for one in (time_s, cost_usd))
    if objective == "balanced":
        return knee(time_s, cost_usd)
    return int(np.lexsort((cost_usd, time_s) if objective == "time" else (time_s, cost_usd))[0])


def _scaled(values: FloatArray) -> FloatArray:
    least, most = values.min(), values.max()
    if most <= least:
        return np.zeros_like(values)
    scaled: FloatArray = (values - least) / (most - least)
    return scaled
