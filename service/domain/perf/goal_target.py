"""Progress of a job to the target of its job file: a metric that reaches a value. Pure.

The job ends when the median of the last three values reaches the target, so one lucky value has no effect.
The forecast fits the curve of `policies.framework.loss_curve` to the distance of the metric from the best
value that it could approach: 0 for a loss, 1 for an accuracy.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headway.contract.runtime import Message, Metrics
from headway.contract.spec_goal import Goal
from headway.contract.values.targets import target_rule
from headway.contract.views.forecasts import TargetProgress
from headway.contract.views.jobs import JobProgress
from service.domain.perf.convergence import WINDOW, spaced
from service.domain.perf.throughput import PERCENTILE_90
from service.domain.policies.framework.loss_curve import MIN_POINTS, fit_loss

_LEAST_SPREAD: Final = 0.1
"""Smallest standard deviation of the logarithm of the forecast work to the target."""
_MOST_AHEAD: Final = 100.0
"""Largest multiple of the work so far that a curve is trusted to reach."""


@dataclass(frozen=True, slots=True)
class WorkToTarget:
    """Work left until the metric reaches its target: P50, and the standard deviation of the logarithm."""

    work: float
    spread: float


def target_of(goal: Goal) -> TargetProgress | None:
    """Return the progress to the target of a job that has reported nothing; None without a target."""
    if goal.target is None:
        return None
    rule = target_rule(goal.target)
    return TargetProgress(metric=rule.metric, value=rule.value, falls=rule.falls)


def after_report(before: JobProgress, after: JobProgress, message: Message) -> JobProgress:
    """Return `after`, the progress after a message, with the progress to its target. `before` precedes the message.

    Values beyond the samples of a restored checkpoint are forgotten.
    """
    target = after.goal_target
    if target is None:
        return after
    if after.samples < before.samples:
        target = _rewound(target, after.work_done)
    if isinstance(message, Metrics) and message.rank == 0 and target.metric in message.values:
        target = _with_value(target, message.samples, _work_at(after, message), message.values[target.metric])
    return after if target is after.goal_target else after.model_copy(update={"goal_target": target})


def has_reached(progress: JobProgress) -> bool:
    """Return True if the job has reached its target."""
    return progress.goal_target is not None and progress.goal_target.reached_samples is not None


def reached_text(target: TargetProgress, epoch: int | None) -> str:
    """Return the reason for the end of a job whose target is reached."""
    sign = "<=" if target.falls else ">="
    where = "" if epoch is None else f" in epoch {epoch}"
    return (
        f"target reached: {target.metric} {target.present:.4g} {sign} {target.value:.4g}{where}, "
        f"at {target.reached_samples or 0:,} samples"
    )


def work_to_target(progress: JobProgress) -> WorkToTarget | None:
    """Return the expected work until the target is reached; None without a target or a forecast."""
    target = progress.goal_target
    if target is None or target.expected_work is None or target.expected_work_p90 is None:
        return None
    left = max(target.expected_work - progress.work_done, 1.0)
    late = max(target.expected_work_p90 - progress.work_done, left)
    return WorkToTarget(left, math.log(late / left) / PERCENTILE_90)


def work_left(progress: JobProgress) -> float:
    """Return the work until the job ends, at its announced total or at its target; NaN if both are unknown."""
    end = progress.work_end
    return math.nan if end is None else max(end - progress.work_done, 0.0)


def _work_at(progress: JobProgress, message: Metrics) -> float:
    """Return the work at a report, which may be later than that of the last progress report."""
    if progress.total_progress is None or progress.efficiency is None:
        return float(message.samples)
    return max(0.0, progress.work_done + (message.samples - progress.samples) * progress.efficiency)


def _rewound(target: TargetProgress, work: float) -> TargetProgress:
    points = [one for one in target.points if one[0] <= work]
    update: dict[str, Any] = {"recent": [], "present": None, "points": points, "reached_samples": None}
    return target.model_copy(update=update)


def _with_value(target: TargetProgress, samples: int, work: float, value: float) -> TargetProgress:
    if not math.isfinite(value) or target.reached_samples is not None:
        return target
    recent = [*target.recent, value][-WINDOW:]
    falls = value >= target.value if target.falls is None else target.falls
    if len(recent) < WINDOW:
        return target.model_copy(update={"recent": recent, "falls": falls})
    present = statistics.median(recent)
    reached = present <= target.value if falls else present >= target.value
    points = spaced(target.points, work, present)
    update: dict[str, Any] = {
        "recent": recent,
        "present": present,
        "falls": falls,
        "reached_samples": samples if reached else None,
        "points": points,
    }
    if points is not target.points:
        p50, p90 = forecast_target(points, target.value, falls=falls)
        update |= {"expected_work": p50, "expected_work_p90": p90}
    return target.model_copy(update=update)


def forecast_target(
    points: list[list[float]], value: float, *, falls: bool
) -> tuple[float, float] | tuple[None, None]:
    """Return the work at which the metric reaches `value`, P50 and P90, from its (work, value) points.

    The curve is fitted to all points, to the later half, and to all but the last. The median of the results is
    P50; their differences give P90. The result is (None, None) unless most of these curves reach the value.
    """
    if len(points) < MIN_POINTS:
        return None, None
    last = points[-1][0]
    half = points[len(points) // 2 :] if len(points) >= 2 * MIN_POINTS else points
    found = [_crossing(part, value, falls=falls) for part in (points, half, points[:-1])]
    known = [max(one - last, 1.0) for one in found if one is not None]
    if len(known) < 2:
        return None, None
    left = statistics.median(known)
    spread = max(_LEAST_SPREAD, statistics.stdev([math.log(one) for one in known]))
    return last + left, last + left * math.exp(PERCENTILE_90 * spread)


def _crossing(points: list[list[float]], value: float, *, falls: bool) -> float | None:
    """Return the work at which the fitted curve reaches the value; None if it does not within reach."""
    work, values = np.array(points).T
    bound = _best_possible(float(values[0]), values.tolist(), value, falls=falls)
    distance, wanted = np.abs(values - bound), abs(value - bound)
    curve = fit_loss(work, distance)
    if curve is None:
        return None
    above = wanted / float(distance.max()) - curve.floor
    if not above > 0:
        return None
    at = (1.0 / above - curve.offset) / curve.slope
    return at if at <= _MOST_AHEAD * float(work[-1]) else None


def _best_possible(first: float, values: list[float], value: float, *, falls: bool) -> float:
    """Return the best value that the metric is assumed to approach at most.

    A positive metric falls to 0, and one between 0 and 1 rises to 1. Any other gets as far beyond the target as
    it began before it.
    """
    least, most = min(*values, value), max(*values, value)
    if falls and least > 0:
        return 0.0
    if not falls and least >= 0 and most < 1:
        return 1.0
    return 2.0 * value - first
