"""Evidence on the effect of the batch: samples between equal losses of two jobs of a class. Pure.

A job that trains with a larger batch may need more samples for the same fall of its loss. Two jobs of a class
at different batches show the factor, which `efficiency.batch_effect` compares with the prediction by gradient
noise. Losses vary from report to report. Therefore the curve of a job is the non-increasing one with the least
squared error, and a pair of jobs whose intervals disagree has little weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from service.domain.cluster.snapshot import LossHistory, LossPoint
from service.domain.jobs.job import Job, class_of
from service.domain.perf.efficiency import batch_effect, efficiency
from service.domain.perf.throughput import LEAST, MOST
from service.domain.shared.arrays import FloatArray

_INTERVALS: Final = 4
"""Number of intervals of the loss that two jobs are compared over, with equally many samples of the first one."""
_MIN_POINTS: Final = 3
"""Minimum number of different losses of a job, and of points of a job within the losses that both jobs had."""
_SURE_POINTS: Final = 8
"""Number of points from which on a comparison has full weight."""
_SPREAD: Final = 0.3
"""Standard deviation, between the intervals of a pair, of the logarithm of samples at which its weight is half."""


class _Group(NamedTuple):
    """Jobs that share an exponent: a class, the global batch of the job file, and whether the learning rate follows it."""

    job_class: str
    reference_batch: int
    scales_rate: bool


@dataclass(frozen=True, slots=True)
class _Curve:
    """Loss of a job by its samples.

    Attributes:
        samples, loss: points of the non-increasing curve, with strictly decreasing losses (P,).
        ends: samples at the ends of stretches of one batch, from the first point on (S + 1,).
        spent: sum up to there of samples times the logarithm of their predicted efficiency (S + 1,).
    """

    samples: FloatArray
    loss: FloatArray
    ends: FloatArray
    spent: FloatArray

    def samples_at(self, loss: FloatArray) -> FloatArray:
        """Return the samples after which the loss is at these values."""
        return np.interp(-loss, -self.loss, self.samples)

    def log_efficiency(self, samples: FloatArray) -> FloatArray:
        """Return the mean logarithm of the predicted efficiency between successive numbers of samples."""
        spent = np.interp(samples, self.ends, self.spent)
        return np.asarray(np.diff(spent) / np.diff(samples))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Intervals of a pair of jobs: predicted and observed efficiency of one relative to the other, and their weight."""

    predicted: FloatArray
    observed: FloatArray
    weight: float


def measured_effects(
    jobs: Sequence[Job],
    histories: Mapping[str, Sequence[LossHistory]],
    noise_scale: FloatArray,
    reference_batch: FloatArray,
) -> FloatArray | None:
    """Return the exponents of the efficiency of jobs (J,) that their class's losses show; None without evidence.

    The keys of `histories` are results of `class_of`. `noise_scale` and `reference_batch` (J,) are in samples, NaN
    where unknown. All jobs of a class with the same batch in their job file share one exponent.
    """
    groups: dict[_Group, list[int]] = {}
    for row, job in enumerate(jobs):
        if job.adapts and class_of(job.spec) in histories and LEAST <= reference_batch[row] <= MOST:
            group = _Group(class_of(job.spec), int(reference_batch[row]), job.scales_rate)
            groups.setdefault(group, []).append(row)
    compared = [
        (index, one)
        for index, (group, rows) in enumerate(groups.items())
        for one in _comparisons(group, histories[group.job_class], _median(noise_scale[rows]))
    ]
    if not compared:
        return None
    found = batch_effect(
        np.repeat([index for index, _ in compared], _INTERVALS),
        np.concatenate([one.predicted for _, one in compared]),
        np.concatenate([one.observed for _, one in compared]),
        np.repeat([one.weight / _INTERVALS for _, one in compared], _INTERVALS),
        len(groups),
    )
    effects = np.ones(len(jobs))
    for index, rows in enumerate(groups.values()):
        effects[rows] = found[index]
    return effects


def _comparisons(
    group: _Group, histories: Sequence[LossHistory], noise_scale: float
) -> Iterator[_Comparison]:
    """Yield the comparisons of all pairs of jobs of a group that trained with different batches."""
    alike = [one for one in histories if _belongs(one, group)]
    if len({point.global_batch for one in alike for point in one.points}) < 2:
        return
    curves = [curve for one in alike if (curve := _curve(one.points, group, noise_scale)) is not None]
    for one, other in combinations(curves, 2):
        found = _compared(one, other)
        if found is not None:
            yield found


def _belongs(history: LossHistory, group: _Group) -> bool:
    """Return True if a job's losses are evidence for a group. At the reference batch, every rule is the same."""
    same_rule = (history.lr_rule != "none") == group.scales_rate
    return history.reference_batch == group.reference_batch and (
        same_rule or all(point.global_batch == group.reference_batch for point in history.points)
    )


def _curve(points: Sequence[LossPoint], group: _Group, noise_scale: float) -> _Curve | None:
    """Return the curve through the losses of a job, oldest first. None if they are too few, or do not fall."""
    kept: list[LossPoint] = []
    for point in points:
        if not (
            abs(point.loss) <= MOST
            and all(LEAST <= one <= MOST for one in (point.samples, point.global_batch))
        ):
            continue
        while kept and kept[-1].samples >= point.samples:
            kept.pop()  # the job returned to a checkpoint
        kept.append(point)
    samples, loss = _falling(kept)
    if len(loss) < _MIN_POINTS:
        return None
    ends = np.array([point.samples for point in kept])
    batches = np.array([point.global_batch for point in kept[1:]], dtype=np.float64)
    logs = np.log(efficiency(batches, group.reference_batch, noise_scale))
    spent = np.concatenate([[0.0], np.cumsum(np.diff(ends) * logs)])
    return _Curve(samples=samples, loss=loss, ends=ends, spent=spent)


def _falling(points: Sequence[LossPoint]) -> tuple[FloatArray, FloatArray]:
    """Return samples and losses of the non-increasing curve with the least squared error (pool adjacent violators).

    Points at which it is level are one point, at the mean of their samples.
    """
    blocks: list[tuple[float, float, int]] = []
    for point in points:
        samples, loss, count = point.samples, point.loss, 1
        while blocks and blocks[-1][1] <= loss:
            before_samples, before_loss, before = blocks.pop()
            both = before + count
            samples = (before_samples * before + samples * count) / both
            loss = (before_loss * before + loss * count) / both
            count = both
        blocks.append((samples, loss, count))
    table = np.array(blocks, dtype=np.float64).reshape(len(blocks), 3)
    return table[:, 0], table[:, 1]


def _compared(one: _Curve, other: _Curve) -> _Comparison | None:
    """Return the comparison of two jobs over the losses that both had; None if these are too few."""
    high, low = min(one.loss[0], other.loss[0]), max(one.loss[-1], other.loss[-1])
    points = min(int(((low <= curve.loss) & (curve.loss <= high)).sum()) for curve in (one, other))
    if not high > low or points < _MIN_POINTS:
        return None
    first, last = one.samples_at(np.array([high, low]))
    of_one = np.linspace(first, last, _INTERVALS + 1)
    of_other = other.samples_at(np.interp(of_one, one.samples, one.loss))
    taken, taken_by_other = np.diff(of_one), np.diff(of_other)
    if not (taken.min() > 0 and taken_by_other.min() > 0):
        return None
    predicted = other.log_efficiency(of_other) - one.log_efficiency(of_one)
    observed = np.log(taken) - np.log(taken_by_other)
    square = float(predicted @ predicted)
    slope = float(predicted @ observed) / square if square > 0 else 0.0
    spread = float(np.std(observed - slope * predicted))
    weight = min(1.0, points / _SURE_POINTS) / (1.0 + (spread / _SPREAD) ** 2)
    return _Comparison(np.exp(predicted), np.exp(observed), weight)


def _median(values: FloatArray) -> float:
    """Return the median of the known values; NaN if there is none."""
    known = values[values >= 0]
    return float(np.median(known)) if known.size else float("nan")
