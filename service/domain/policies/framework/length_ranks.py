"""Rank of each job by its expected time to go, if the length of some jobs is unknown.

A job of unknown length outlasts another job with probability `t / (t + u)`. Here `t` is the time that the job
was served. `u` is the time to go of the other job, or its time served if its length is unknown too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_LEAST_S: Final = 600.0
"""Minimum time served, in seconds, for a job of unknown length. It makes young jobs equal, so they do not
stop one another.
"""
_SHORTEST_S: Final = 1e-9
"""Minimum time to go, in seconds, so that logarithms are finite."""
_PAIRS: Final = 1 << 20
"""Maximum number of pairs of jobs that are compared individually: 8 MB and about 5 ms. The cost of the grid
does not grow with the number of pairs.
"""
_PER_E: Final = 16
"""Grid nodes for each factor of e. Sixteen keep the error below one millionth; it shrinks with their fourth
power.
"""


def expected_ranks(to_go_s: FloatArray, known: BoolArray, served_s: FloatArray) -> FloatArray:
    """Return the rank of each job (J,), from 1 for the longest time to go up to J for the shortest.

    A rank is one more than the number of other jobs that outlast the job. Jobs with equal times to go share their
    ranks. If the length of a job is not `known` (J,), the number is an expectation. The time is O(J log J) and the
    memory O(J). With more than about a million pairs the relative error of a rank is below one millionth.

    Args:
        to_go_s: (J,) seconds to go, where known.
        known: (J,) where the length is known.
        served_s: (J,) seconds served.
    """
    ranks = np.ones(len(known))
    ascending = np.sort(to_go_s[known])
    below, up_to = (np.searchsorted(ascending, to_go_s[known], side=side) for side in ("left", "right"))
    ranks[known] += len(ascending) - up_to + (up_to - below - 1) / 2
    time_s = np.where(known, np.maximum(to_go_s, _SHORTEST_S), np.maximum(served_s, _LEAST_S))
    unknown_s = time_s[~known]
    ranks += outlasting_jobs(time_s, unknown_s)
    # A job of unknown length does not outlast itself, which the sum counts as one half.
    ranks[~known] += outlasting_jobs(unknown_s, time_s[known]) - 0.5
    return ranks


def outlasting_jobs(time_s: FloatArray, others_s: FloatArray) -> FloatArray:
    """Return the expected number of `others_s` (O,) that outlast each of `time_s` (T,): the sum of `o / (o + t)`."""
    if len(time_s) * len(others_s) <= _PAIRS:
        return outlasting_by_pairs(time_s, others_s)
    return outlasting_by_grid(time_s, others_s)


def outlasting_by_pairs(time_s: FloatArray, others_s: FloatArray) -> FloatArray:
    """Return the exact sums (T,) in time and memory O(T * O)."""
    return np.asarray((others_s / (time_s[:, None] + others_s)).sum(axis=1))


def outlasting_by_grid(time_s: FloatArray, others_s: FloatArray) -> FloatArray:
    """Return the sums (T,) with a relative error below one millionth, in time and memory O(T + O).

    In logarithms, `o / (o + t)` is the logistic function of the difference, so the sum is a convolution. The function
    is smooth: the counts are spread over a grid of logarithms by cubic interpolation, convolved there, and read by
    the same interpolation. All times must be positive and finite.
    """
    at, of = np.log(time_s) * _PER_E, np.log(others_s) * _PER_E
    first = np.floor(min(at.min(initial=np.inf), of.min(initial=np.inf)))
    nodes = int(np.floor(max(at.max(initial=first), of.max(initial=first))) - first) + 4
    counts = np.zeros(nodes)
    for node, weight in zip(*_four_nodes(of - first), strict=True):
        counts += np.bincount(node, weight, nodes)
    distance = np.arange(1 - nodes, nodes) / _PER_E
    sums = np.convolve(counts, 1.0 / (1.0 + np.exp(distance)), mode="valid")
    return np.asarray(sum(sums[node] * weight for node, weight in zip(*_four_nodes(at - first), strict=True)))


def _four_nodes(place: FloatArray) -> tuple[list[IntArray], list[FloatArray]]:
    """Return the four grid nodes around each place, and their weights in cubic (Lagrange) interpolation."""
    start = np.floor(place)
    x = place - start
    weights = [
        -x * (x - 1) * (x - 2) / 6,
        (x + 1) * (x - 1) * (x - 2) / 2,
        -(x + 1) * x * (x - 2) / 2,
        (x + 1) * x * (x - 1) / 6,
    ]
    return [start.astype(np.int64) + shift for shift in range(4)], weights
