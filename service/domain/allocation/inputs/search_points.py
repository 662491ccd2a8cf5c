"""Configurations among which a search chooses: columns, and for a job that adapts its batch, columns with batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.allocation.configurations.masks import columns_of_size
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.inputs.estimates import Estimates
from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.perf.learned import batch_of
from service.domain.perf.searches.search import VISIT_STEPS, Known
from service.domain.perf.tables import table_at_batches
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

AGREES: Final = math.log(1.1)
"""Largest difference of the logarithms of two measured speeds of one configuration that agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPoints:
    """Points (P,) of one job's search: a column of the round each, and its global batch (0: not adapted).

    `configurations` are those of the points. `known` is the knowledge about them.
    """

    column: IntArray
    batch: IntArray
    configurations: Configurations
    known: Known

    def at(self, column: int, batch: int | None) -> int:
        """Return the point of a column with the batch nearest to `batch`; -1 without a column."""
        here = np.flatnonzero(self.column == column)
        if column < 0 or not here.size:
            return -1
        away = np.abs(np.log(np.maximum(self.batch[here], 1) / max(batch or 1, 1)))
        return int(here[away.argmin()])


def batch_grid(job: Job, *, keeps_batch: bool) -> IntArray:
    """Return the global batches (B,) that the search of a job considers; [0] for a job that does not adapt its batch.

    They double from the batch of the job file up to its bound, or up to that of its ranks if it is smaller. Until
    the ranks report that bound, they cannot change their batch.
    """
    least, most, reported = job.spec.batch.global_, job.spec.batch.max_global, job.progress.max_global_batch
    if not job.adapts or keeps_batch or least is None or most is None or reported is None:
        return np.zeros(1, dtype=np.int64)
    most = max(least, min(most, reported))
    doublings = (most // least).bit_length()
    return np.unique([*(least << step for step in range(doublings)), most]).astype(np.int64)


def points_of(scope: RoundScope, estimates: Estimates, row: int, allowed: BoolArray) -> SearchPoints:
    """Return the points of a job's search. `allowed` (C,) marks the columns that it may have."""
    job, columns = scope.jobs[row], scope.columns.by_kind
    batches = batch_grid(job, keeps_batch=scope.snapshot.keeps_batch)
    count, width = batches.size, columns.slots.size
    column, batch = np.tile(np.arange(width), count), np.repeat(batches, width)
    configurations = columns.of_columns(column)
    prospects, table = estimates.prospects, estimates.table
    if count == 1:
        goodput, low = prospects.goodput[row], prospects.low[row]
        efficiency, global_batch = table.efficiency[row], table.global_batch[row]
    else:
        # Spot interruptions cost the same share of goodput at every batch.
        runs = table.goodput[row] > 0
        share = np.where(runs, prospects.goodput[row] / np.where(runs, table.goodput[row], 1.0), 1.0)
        found = table_at_batches(estimates.learned.models, row, batches, columns, estimates.measured.observed)
        goodput, low = (found.goodput * share).ravel(), (found.low * share).ravel()
        efficiency, global_batch = found.efficiency.ravel(), found.global_batch.ravel()
    own = _Made.on(configurations, batch, scope.snapshot.measurements.get(job.id, ()))
    shared = _Made.on(configurations, batch, scope.snapshot.class_measurements.get(class_of(job.spec), ()))
    known = Known(
        allowed=allowed[column],
        batch=batch,
        per_s=goodput,
        low=low,
        step_samples=global_batch * efficiency,
        steps=own.steps,
        seconds=own.seconds,
        samples=own.samples * np.where(efficiency > 0, efficiency, 1.0),
        shown=_shown(own, shared),
        modelled=bool(estimates.known[row]),
    )
    return SearchPoints(column=column, batch=batch, configurations=configurations, known=known)


@dataclass(frozen=True, slots=True)
class _Made:
    """Training on each point (P,): steps, seconds, and plain samples."""

    steps: FloatArray
    seconds: FloatArray
    samples: FloatArray

    @classmethod
    def on(cls, points: Configurations, batch: IntArray, measurements: Sequence[Measurement]) -> _Made:
        """Return the sums of the measurements at each point; a point without a batch takes those of any batch."""
        steps, seconds, samples = (np.zeros(points.slots.size) for _ in range(3))
        for one in measurements:
            if one.believable:
                same = columns_of_size(one.device_kind, one.slots, points)
                same &= (batch == 0) | (batch == batch_of(one))
                steps[same] += one.steps
                made = one.steps * max(one.global_batch, 1)
                samples[same] += made
                seconds[same] += made / one.samples_per_s
        return cls(steps, seconds, samples)


def _shown(own: _Made, shared: _Made) -> BoolArray:
    """Return the points (P,) that the class has measured, if the job's own measurements agree with the class's.

    Without a point that both have measured, or with one at which they differ, the class shows nothing.
    """
    enough = shared.steps >= VISIT_STEPS
    both = enough & (own.steps >= VISIT_STEPS)
    if not both.any():
        return np.zeros_like(enough)
    mine, theirs = (one.samples[both] / one.seconds[both] for one in (own, shared))
    agree = bool((np.abs(np.log(mine / theirs)) <= AGREES).all())
    return enough & agree
