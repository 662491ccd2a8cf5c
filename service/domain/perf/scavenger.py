"""Scavenger's models of time and cost (Tyagi & Sharma, CCGrid'23, equations 3 to 10). Pure; for one job.

    time = steps * step time,   steps = epochs * dataset / batch,   cost = time * workers * price
    step time = compute + sync, compute linear in the local batch,  sync linear in the number of workers
    epochs = base + slope * noise,                                  noise linear in 1 / sqrt(batch)

All models are straight lines, so two extreme points of each are enough. In the paper, the slope of epochs
against noise is positive: larger batches have lower noise and need fewer epochs. With learning rates that are
scaled with the batch, the slope has the other sign. So the slope is fitted to measurements, and is zero until
there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from service.domain.perf.frontier import knee
from service.domain.shared.arrays import FloatArray

_MOST = 1e15
"""Upper bound of every value that is believed, so that one absurd number cannot overflow the arithmetic."""
_FEWEST = 1e-12
"""Lower bound of positive values: products of smaller ones underflow."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Straight line: value = base + slope * x."""

    base: float
    slope: float

    def at(self, x: FloatArray) -> FloatArray:
        """Return the values of the line at `x`."""
        return self.base + self.slope * np.asarray(x, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measurements of one job, one entry each (P,), NaN where a value was not measured.

    `noise` is the mean squared norm of the workers' gradients over that of their mean, divided by the number
    of workers.
    """

    workers: FloatArray
    global_batch: FloatArray
    compute_s: FloatArray
    sync_s: FloatArray
    noise: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScavengerModel:
    """Lines of one job: `compute_s` over the local batch, `sync_s` over workers, `noise` over 1 / sqrt(global
    batch), and `epochs` over noise.
    """

    compute_s: LinearModel
    sync_s: LinearModel
    noise: LinearModel
    epochs: LinearModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Time and cost for each number of workers (rows) and global batch (columns), infinite where impossible."""

    time_s: FloatArray
    cost_usd: FloatArray


class Goal(StrEnum):
    """Goal of a choice."""

    TIME = "time"
    COST = "cost"
    KNEE = "knee"


def fit(profile: Profile, noise_of_runs: FloatArray, epochs_of_runs: FloatArray) -> ScavengerModel:
    """Return the model of one job.

    `noise_of_runs` and `epochs_of_runs` (Q,) are the mean noise and the epochs to the target of earlier runs
    with different batches and the same learning-rate rule. With at most one run, the batch has no effect on
    epochs. Without a run, the number of epochs is 1, so times are those of one epoch.
    """
    workers, batch = _counts(profile.workers), _counts(profile.global_batch)
    return ScavengerModel(
        compute_s=_cost_line(batch / workers, profile.compute_s),
        # A single worker has no peer to wait for, so its measurement does not show how the wait grows.
        sync_s=_cost_line(np.where(workers > 1, workers, np.nan), profile.sync_s),
        noise=_line(1.0 / np.sqrt(batch), profile.noise) or LinearModel(1.0, 0.0),
        epochs=_line(noise_of_runs, np.where(epochs_of_runs > 0, epochs_of_runs, np.nan))
        or LinearModel(1.0, 0.0),
    )


def predict(
    model: ScavengerModel,
    *,
    workers: FloatArray,
    global_batch: FloatArray,
    dataset_samples: float,
    usd_per_worker_h: float,
    max_local: float = np.inf,
) -> Grid:
    """Return time and cost of every pair of `workers` (K,) and `global_batch` (B,)."""
    count, batch = np.meshgrid(np.asarray(workers, float), np.asarray(global_batch, float), indexing="ij")
    valid = np.isfinite(count) & np.isfinite(batch) & (count >= 1) & (batch >= count)
    count, batch = np.where(valid, count, 1.0), np.where(valid, batch, 1.0)
    local = batch / count
    step_s = model.compute_s.at(local) + np.where(count > 1, model.sync_s.at(count), 0.0)
    epochs = model.epochs.at(model.noise.at(1.0 / np.sqrt(batch)))
    # Lines that were fitted to other sizes may fall below zero here, where they are not valid.
    valid &= (local <= max_local) & (step_s > _FEWEST) & (epochs > _FEWEST)
    time_s = np.where(valid, epochs * dataset_samples / batch * step_s, np.inf)
    cost = np.where(valid, time_s * count * (usd_per_worker_h / 3600.0), np.inf)
    return Grid(time_s=time_s, cost_usd=cost)


def choose(
    grid: Grid, goal: Goal, *, max_time_s: float = np.inf, max_cost_usd: float = np.inf
) -> tuple[int, int] | None:
    """Return (row, column) of the fastest, the cheapest or the knee within both limits, or None if no pair is
    within them.

    Ties go to the pair that is better in the other quantity, then to fewer workers and the smaller batch.
    """
    within = (grid.time_s <= max_time_s) & (grid.cost_usd <= max_cost_usd)
    within &= np.isfinite(grid.time_s) & np.isfinite(grid.cost_usd)
    if not within.any():
        return None
    time_s, cost = (np.where(within, values, np.inf).ravel() for values in (grid.time_s, grid.cost_usd))
    if goal is Goal.KNEE:
        best = knee(time_s, cost)
        assert best is not None
    else:
        best = int(np.lexsort((cost, time_s) if goal is Goal.TIME else (time_s, cost))[0])
    row, column = np.unravel_index(best, grid.time_s.shape)
    return int(row), int(column)


def _counts(values: FloatArray) -> FloatArray:
    """Return the valid numbers of workers or samples, NaN for other values."""
    return np.where((values >= 1) & (values < _MOST), values, np.nan)


def _line(x: FloatArray, y: FloatArray) -> LinearModel | None:
    """Return the least-squares line, with slope 0 if all points share one x, or None without a finite point."""
    valid = (np.abs(x) < _MOST) & (np.abs(y) < _MOST)
    if not valid.any():
        return None
    x, y = x[valid], y[valid]
    middle, level = x.mean(), y.mean()
    variance = ((x - middle) ** 2).mean()
    slope = ((x - middle) * (y - level)).mean() / variance if variance > 1e-18 * middle**2 else 0.0
    return LinearModel(float(level - slope * middle), float(slope))


def _cost_line(x: FloatArray, y: FloatArray) -> LinearModel:
    """Return a line that never falls, for seconds that grow with x.

    It passes through the origin if only one x was tried, and is 0 without measurements.
    """
    valid = (x > 0) & (x < _MOST) & (y >= 0) & (y < _MOST)
    line = _line(x[valid], y[valid])
    if line is None:
        return LinearModel(0.0, 0.0)
    if np.ptp(x[valid]) == 0.0:
        return LinearModel(0.0, float(y[valid].mean() / x[valid].mean()))
    return line if line.slope >= 0 else LinearModel(float(y[valid].mean()), 0.0)
