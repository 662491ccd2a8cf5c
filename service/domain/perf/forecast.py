"""Remaining work of jobs, and the time and cost to their end in each configuration. Pure.

Every estimate is a median (P50) with a spread, the standard deviation of its logarithm, so that P90 = P50 *
exp(1.2816 * spread).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from service.domain.jobs.job import Job, class_of
from service.domain.perf.goal_target import work_to_target
from service.domain.perf.learned import job_classes
from service.domain.shared.arrays import FloatArray, IntArray

Z90: Final = 1.2815515655446004
"""Standard deviations from the median of a normal distribution to its P90."""
_S_PER_H: Final = 3600.0
_PRIOR_SPREAD: Final = 0.7
"""Spread of the sizes of jobs of one class before it is measured: a factor of about two."""
_LEAST_DONE: Final = 1e-9
"""Samples below which nothing counts as done, because the arithmetic would overflow."""
_PRIOR_JOBS: Final = 2.0
"""Number of ended jobs that the prior spread counts as."""


class WorkSource(IntEnum):
    """Source of an estimate of the remaining work."""

    SCRIPT = 0
    CLASS = 1
    UNKNOWN = 2
    TARGET = 3

    @property
    def reason(self) -> str:
        """Explanation of the source for users."""
        return _REASONS[self]


_REASONS: Final = {
    WorkSource.SCRIPT: "the script says how many samples it trains on",
    WorkSource.CLASS: "as many samples as ended jobs of its class took",
    WorkSource.TARGET: "until its metric reaches the target, by the values that it has reported",
    WorkSource.UNKNOWN: "the script does not say how long it trains, and no job of its class has ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTotals:
    """Total samples of the jobs of each class (L,): `median` (NaN: no job has ended), and `spread`."""

    median: FloatArray
    spread: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Remaining `samples` (J,), NaN where unknown, with their `spread` (J,) and `source` (J,), a `WorkSource`."""

    samples: FloatArray
    spread: FloatArray
    source: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds and dollars to the end of a job, arrays of one shape.

    They are infinite where the job cannot run, and NaN where the work or the price is unknown.
    """

    time_p50_s: FloatArray
    time_p90_s: FloatArray
    cost_p50_usd: FloatArray
    cost_p90_usd: FloatArray


def learn_totals(job_class: IntArray, samples: FloatArray, classes: int) -> ClassTotals:
    """Return the totals of each class, learned from ended jobs (E,): their classes and the samples that they took."""
    job_class, samples = np.asarray(job_class, np.int64), np.asarray(samples, float)
    valid = np.isfinite(samples) & (samples > 0) & (job_class >= 0) & (job_class < classes)
    of, logs = job_class[valid], np.log(samples[valid])
    count = np.bincount(of, minlength=classes).astype(float)
    some = np.maximum(count, 1.0)
    mean = np.bincount(of, weights=logs, minlength=classes) / some
    squares = np.bincount(of, weights=(logs - mean[of]) ** 2, minlength=classes)
    variance = (squares + _PRIOR_JOBS * _PRIOR_SPREAD**2) / (some - 1 + _PRIOR_JOBS)
    # The mean of few jobs is uncertain too.
    spread = np.sqrt(variance * (1.0 + 1.0 / some))
    return ClassTotals(median=np.where(count > 0, np.exp(mean), np.nan), spread=spread)


def remaining_samples(
    done: FloatArray, total: FloatArray, job_class: IntArray, totals: ClassTotals
) -> Remaining:
    """Return the remaining samples of each job, from (J,) samples `done`, `total` (NaN: unknown) and class index.

    The totals of a class are assumed to be log-logistic, because the quantiles of a job's remaining work then
    have a closed form. A job that has outlived its class is assumed to need work in proportion to what it has
    done.
    """
    done, total = np.asarray(done, float), np.asarray(total, float)
    done = np.where(np.isfinite(done), np.maximum(done, 0.0), 0.0)
    said = np.isfinite(total) & (total > 0)
    known = (job_class >= 0) & (job_class < totals.median.size)
    index = np.where(known, job_class, -1)
    median = np.append(totals.median, np.nan)[index]
    spread = np.append(totals.spread, np.nan)[index]
    left = _left_of_class(done, median, spread, 0.5)
    late = _left_of_class(done, median, spread, 0.9)
    learned = np.isfinite(left) & np.isfinite(late)
    grows = learned & (left > 0)
    spread = np.log(np.where(grows, late, 1.0)) - np.log(np.where(grows, left, 1.0))
    samples = np.where(said, np.maximum(total - done, 0.0), np.where(learned, left, np.nan))
    source = np.where(learned, int(WorkSource.CLASS), int(WorkSource.UNKNOWN))
    return Remaining(
        samples=samples,
        spread=np.where(said, 0.0, spread / Z90),
        source=np.where(said, int(WorkSource.SCRIPT), source),
    )


def remaining_of(jobs: Sequence[Job], ended_samples: Mapping[str, Sequence[float]]) -> Remaining:
    """Return the samples left of each job: as its script reports, otherwise as ended jobs of its class took.

    They are reference samples for jobs that count their progress (`jobs.work`). A job with a target ends there if its
    metric is expected to reach it earlier. `ended_samples` are the samples of ended jobs, by class.
    """
    names = sorted({class_of(job.spec) for job in jobs})
    took = [(index, samples) for index, name in enumerate(names) for samples in ended_samples.get(name, ())]
    of_class, samples = np.array(took, dtype=np.float64).reshape(len(took), 2).T
    totals = [job.progress.work_total for job in jobs]
    left = remaining_samples(
        np.array([job.progress.work_done for job in jobs], dtype=np.float64),
        np.array([math.nan if total is None else float(total) for total in totals]),
        job_classes(jobs),
        learn_totals(of_class.astype(np.int64), samples, len(names)),
    )
    to_target = [work_to_target(job.progress) for job in jobs]
    samples = np.array([math.inf if one is None else one.work for one in to_target])
    spread = np.array([0.0 if one is None else one.spread for one in to_target])
    said = np.where(left.source == WorkSource.SCRIPT, left.samples, np.inf)
    earlier = samples < said
    return Remaining(
        samples=np.where(earlier, samples, left.samples),
        spread=np.where(earlier, spread, left.spread),
        source=np.where(earlier, int(WorkSource.TARGET), left.source),
    )


def _left_of_class(done: FloatArray, median: FloatArray, spread: FloatArray, share: float) -> FloatArray:
    """Return the quantile `share` of the remaining work of a job of a class, given that it takes more than `done`."""
    # A log-logistic's survival function is 1 / (1 + (x / median) ** steepness). It is solved for the x that a
    # share of 1 - share survives, of the jobs that survive `done`.
    steepness = np.pi / (np.sqrt(3.0) * spread)
    some = done > _LEAST_DONE
    log_done = np.log(np.where(some, done, 1.0))
    before = np.where(some, steepness * (log_done - np.log(median)), -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        log_total = np.log(median) + (np.logaddexp(before, np.log(share)) - np.log1p(-share)) / steepness
        left: FloatArray = np.where(some, done * np.expm1(log_total - log_done), np.exp(log_total))
    return left


def forecast(
    *,
    goodput: FloatArray,
    low: FloatArray,
    remaining: FloatArray,
    remaining_spread: FloatArray,
    usd_per_h: FloatArray,
    pause_s: FloatArray | float = 0.0,
    losses_per_h: FloatArray | float = 0.0,
    loss_s: FloatArray | float = 0.0,
) -> Forecast:
    """Return time and cost to the end of a job; all arguments broadcast.

    Args:
        goodput: Samples per second, P50, in the unit of `remaining` (`jobs.work`). 0 where the job cannot run.
        low: P10 of the goodput.
        remaining: Samples left, NaN where unknown.
        remaining_spread: Spread of `remaining`.
        usd_per_h: Price of the configuration.
        pause_s: Training time that planned changes cost, before anything else.
        losses_per_h: Expected number of lost members per hour.
        loss_s: Seconds that each loss costs.

    Errors of speed and of size are independent and do not average out while the job runs, so the squares of
    their spreads add. Losses are a Poisson process: the variance of their seconds adds as well.
    """
    goodput, remaining, usd_per_h = (np.asarray(one, float) for one in (goodput, remaining, usd_per_h))
    runs = np.isfinite(goodput) & (goodput > 0)
    speed = np.where(runs, goodput, 1.0)
    known = np.isfinite(remaining) & (remaining >= 0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        train_s = np.where(runs, np.where(known, remaining, np.nan) / speed, np.inf)
        slower = np.log(speed / np.clip(low, 0.0, speed)) / Z90
        loss_share = _not_negative(losses_per_h) / _S_PER_H * _not_negative(loss_s)
        median_s = train_s * (1.0 + loss_share)
        late_s = median_s * np.exp(Z90 * np.hypot(slower, _not_negative(remaining_spread)))
        # Losses take loss_share * train_s on average. For a Poisson process, the variance is that times the
        # length of a loss.
        lost_s = np.where(loss_share > 0, loss_share * train_s, 0.0)
        losses_spread_s = np.sqrt(lost_s * _not_negative(loss_s))
        later_s = np.where(np.isposinf(late_s), np.inf, np.hypot(late_s - median_s, Z90 * losses_spread_s))
        p50_s = _not_negative(pause_s) + median_s
        p90_s = p50_s + later_s
        p50_s, p90_s = (np.where(remaining == 0, 0.0, one) for one in (p50_s, p90_s))
        price = np.where(usd_per_h >= 0, usd_per_h, np.nan)
        # A free configuration costs nothing, even without an end.
        p50_usd, p90_usd = (np.where(price == 0, 0.0, one / _S_PER_H * price) for one in (p50_s, p90_s))
    return Forecast(time_p50_s=p50_s, time_p90_s=p90_s, cost_p50_usd=p50_usd, cost_p90_usd=p90_usd)


def _not_negative(values: FloatArray | float) -> FloatArray:
    values = np.asarray(values, float)
    return np.where(np.isfinite(values), np.maximum(values, 0.0), 0.0)
