"""Work at which the loss of a job converges, from the losses that it reports. Pure.

A curve of first-order convergence is fitted to the losses (`policies.framework.loss_curve`). It has converged where an
epoch lowers the loss by at most `CONVERGED` of the largest loss (Optimus, EuroSys'18, section 3.1). Jobs train on beyond
this point. Ended jobs show how far (`FinishedJobs.beyond`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from headway.contract.runtime import Message, Metrics
from headway.contract.views.jobs import JobProgress
from headway.contract.views.progress import LossProgress
from service.domain.policies.framework.loss_curve import MAX_POINTS, MIN_POINTS, fit_loss

LOSS: Final = "loss"
"""Name of the metric that counts as the training loss."""
CONVERGED: Final = 0.01
"""Decrease of the loss in an epoch, relative to the largest loss, at which Optimus takes a job as converged."""
WINDOW: Final = 3
"""Number of values of a metric whose median counts, so that one outlier has no effect."""


def after_loss(before: JobProgress, after: JobProgress, message: Message) -> JobProgress:
    """Return `after`, the progress after a message, with the losses of a job whose length is unknown.

    `before` precedes the message. Losses beyond the samples of a restored checkpoint are forgotten.
    """
    if after.work_total is not None:
        return after
    losses = after.loss_curve
    if losses is not None and after.samples < before.samples:
        kept = [one for one in losses.points if one[0] <= after.work_done]
        losses = losses.model_copy(update={"recent": [], "points": kept})
    if isinstance(message, Metrics) and message.rank == 0 and LOSS in message.values:
        losses = _with_loss(
            losses or LossProgress(), message.samples, message.values[LOSS], epoch_samples(after)
        )
    return after if losses is after.loss_curve else after.model_copy(update={"loss_curve": losses})


def epoch_samples(progress: JobProgress) -> float:
    """Return the samples of an epoch, NaN if unknown. On average half of the present epoch is done."""
    if progress.dataset_samples is not None:
        return float(progress.dataset_samples)
    return progress.samples / (progress.epoch + 0.5) if progress.epoch else math.nan


def converged_work(points: Sequence[Sequence[float]], epoch_work: float) -> float | None:
    """Return the work at which the curve through the (work, loss) points has converged; None without a curve.

    `epoch_work` is the work of an epoch, in the unit of the points. A loss that converges within the first epoch is
    level: its curve fits noise.
    """
    if len(points) < MIN_POINTS or not 0.0 < epoch_work < math.inf:
        return None
    work, loss = np.array(points, dtype=np.float64).T
    curve = fit_loss(work, loss)
    found = 0.0 if curve is None else curve.converged_at(epoch_work, CONVERGED)
    return found if found >= epoch_work else None


def spaced(points: list[list[float]], work: float, value: float) -> list[list[float]]:
    """Return the (work, value) points with another one, unless it is too close to the last one.

    Their distance is at least a sixteenth of their span, so a curve is fitted rarely, however often the script
    reports.
    """
    if len(points) >= MIN_POINTS and work - points[-1][0] < (points[-1][0] - points[0][0]) / MAX_POINTS:
        return points
    before = [one for one in points if one[0] < work]
    if len(before) >= MAX_POINTS:
        before = before[::2]
    return [*before, [work, value]]


def _with_loss(losses: LossProgress, work: float, loss: float, epoch_work: float) -> LossProgress:
    if not math.isfinite(loss):
        return losses
    recent = [*losses.recent, loss][-WINDOW:]
    update: dict[str, Any] = {"recent": recent}
    if len(recent) == WINDOW:
        points = spaced(losses.points, work, statistics.median(recent))
        if points is not losses.points:
            found = converged_work(points, epoch_work)
            update |= {"points": points, "converged_work": losses.converged_work if found is None else found}
    return losses.model_copy(update=update)
