"""Scavenger's models of time and cost (Tyagi & Sharma, CCGrid'23, equations 3 to 10). Pure; for one job.

    time = steps * step time,   steps = epochs * dataset / batch,   cost = time * workers * price
    step time = compute + sync, compute linear in the local batch,  sync linear in the number of workers
    epochs = base + slope * noise,                                  noise linear in 1 / sqrt(batch)

Straight lines, so two extreme points of each are enough. The paper has the slope of epochs against noise positive:
larger batches, whose noise is lower, need fewer epochs. With learning rates that are scaled with the batch it is the
other way round, so it is fitted to what was seen, and zero until that is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.perf.frontier import knee

_MOST = 1e15
"""No second, batch or noise is so large; one absurd number must not make the arithmetic overflow."""
_FEWEST = 1e-12
"""Nor is one so small: products of smaller ones come to nothing."""


@dataclass(frozen=True, slots=True)
class Line:
    """value = base + slope * x."""

    base: float
    slope: float

    def at(self, x: FloatArray) -> FloatArray:
        """The values at `x`."""
        return self.base + self.slope * np.asarray(x, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured, one entry each (P,); NaN where something was not.

    `noise` is the mean squared norm of the workers' gradients over that of their mean, divided by the workers.
    """

    workers: FloatArray
    global_batch: FloatArray
    compute_s: FloatArray
    sync_s: FloatArray
    noise: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScavengerModel:
    """The four lines: `compute_s` over the local batch, `sync_s` over workers, `noise` over 1 / sqrt(global batch),
    and `epochs` over noise.
    """

    compute_s: Line
    sync_s: Line
    noise: Line
    epochs: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Time and cost of each number of workers (rows) with each global batch (columns); infinite where it cannot be."""

    time_s: FloatArray
    cost_usd: FloatArray


class Goal(StrEnum):
    """What a choice is for."""

    TIME = "time"
    COST = "cost"
    KNEE = "knee"


def fit(profile: Profile, noise_of_runs: FloatArray, epochs_of_runs: FloatArray) -> ScavengerModel:
    """The model of one job.

    `noise_of_runs` and `epochs_of_runs` (Q,) are mean noise and epochs to the target of earlier runs with different
    batches, of the same learning-rate rule. From one run, or none, the batch has no effect on epochs (1 where unknown, so
    that times are those of an epoch).
    """
    workers, batch = _counts(profile.workers), _counts(profile.global_batch)
    return ScavengerModel(
        compute_s=_cost_line(batch / workers, profile.compute_s),
        # One worker has no peer to wait for; that says nothing of how the wait grows.
        sync_s=_cost_line(np.where(workers > 1, workers, np.nan), profile.sync_s),
        noise=_line(1.0 / np.sqrt(batch), profile.noise) or Line(1.0, 0.0),
        epochs=_line(noise_of_runs, np.where(epochs_of_runs > 0, epochs_of_runs, np.nan)) or Line(1.0, 0.0),
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
    """Time and cost of every pair of `workers` (K,) and `global_batch` (B,)."""
    count, batch = np.meshgrid(np.asarray(workers, float), np.asarray(global_batch, float), indexing="ij")
    valid = np.isfinite(count) & np.isfinite(batch) & (count >= 1) & (batch >= count)
    count, batch = np.where(valid, count, 1.0), np.where(valid, batch, 1.0)
    local = batch / count
    step_s = model.compute_s.at(local) + np.where(count > 1, model.sync_s.at(count), 0.0)
    epochs = model.epochs.at(model.noise.at(1.0 / np.sqrt(batch)))
    # Lines that were fitted elsewhere may lead below zero here: there they say nothing.
    valid &= (local <= max_local) & (step_s > _FEWEST) & (epochs > _FEWEST)
    time_s = np.where(valid, epochs * dataset_samples / batch * step_s, np.inf)
    cost = np.where(valid, time_s * count * (usd_per_worker_h / 3600.0), np.inf)
    return Grid(time_s=time_s, cost_usd=cost)


def choose(
    grid: Grid, goal: Goal, *, max_time_s: float = np.inf, max_cost_usd: float = np.inf
) -> tuple[int, int] | None:
    """(row, column) of the fastest, the cheapest or the knee of what keeps to both limits; None where nothing does.

    Ties go to what is better in the other respect, then to fewer workers and the smaller batch.
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
    """Numbers of workers or samples that can be true, NaN for others."""
    return np.where((values >= 1) & (values < _MOST), values, np.nan)


def _line(x: FloatArray, y: FloatArray) -> Line | None:
    """Least squares; level through points that share one x; None without a finite point."""
    valid = (np.abs(x) < _MOST) & (np.abs(y) < _MOST)
    if not valid.any():
        return None
    x, y = x[valid], y[valid]
    middle, level = x.mean(), y.mean()
    variance = ((x - middle) ** 2).mean()
    slope = ((x - middle) * (y - level)).mean() / variance if variance > 1e-18 * middle**2 else 0.0
    return Line(float(level - slope * middle), float(slope))


def _cost_line(x: FloatArray, y: FloatArray) -> Line:
    """A line that never falls: seconds that grow with x, in proportion where only one x was tried. Free where nothing
    was measured.
    """
    valid = (x > 0) & (x < _MOST) & (y >= 0) & (y < _MOST)
    line = _line(x[valid], y[valid])
    if line is None:
        return Line(0.0, 0.0)
    if np.ptp(x[valid]) == 0.0:
        return Line(0.0, float(y[valid].mean() / x[valid].mean()))
    return line if line.slope >= 0 else Line(float(y[valid].mean()), 0.0)
