"""Goodput, its interval and the best batch plan of every job in every configuration. Pure; for all jobs at once.

Goodput is throughput times statistical efficiency (Pollux, OSDI'21, sections 3 and 4.1). What was measured on exactly one
configuration corrects the model there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.perf.batch_plan import Cells, best_batch, goodput_of, split
from service.domain.perf.throughput import (
    GUESS_SPREAD,
    PERCENTILE_90,
    ThroughputModel,
    log_spread,
    step_time,
)
from service.domain.policies.policy import Configurations

_CELLS: Final = 1 << 13
"""(job, configuration) pairs worked on at once, so that temporaries stay in the cache."""
_MOST_EFFECT: Final = 10.0
"""No exponent of efficiency that was measured is beyond this."""

_MODEL_ERROR: Final = 0.05
"""Standard deviation of the logarithm by which a model is at least wrong about a single configuration."""
_MEASURED_ERROR: Final = 0.02
"""The same of a measurement however long it is,"""
_STEP_ERROR: Final = 0.3
"""of one step,"""
_BATCH_ERROR: Final = 0.1
"""and what each doubling between the batch that was measured and the one planned adds."""
_SLOWEST, _FASTEST = 1e-9, 1e15
"""Samples per second that can be true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModels:
    """What is known of `J` jobs on `K` device kinds. Whatever is not a number, or not positive, is unknown.

    Attributes:
        throughput: models of shape (J, K).
        noise_scale: (J,) gradient noise scale in samples.
        reference_batch: (J,) samples of a step as the user wrote it. Where it is unknown the present batch takes its place;
            where that is too, a slot is taken to do one sample a step: the unit is then that job's own.
        global_batch: (J,) samples of a step now.
        max_global: (J,) what they may grow to; unknown: not beyond the reference.
        max_local: (J, K) samples that a slot can take at once; unknown: any number.
        adapts: (J,) whether the global batch may change at all.
        batch_effect: (J,) what was seen of the batch's effect on progress, as the exponent of efficiency
            (`efficiency.batch_effect`); None: as the noise has it.
    """

    throughput: ThroughputModel
    noise_scale: FloatArray
    reference_batch: FloatArray
    global_batch: FloatArray
    max_global: FloatArray
    max_local: FloatArray
    adapts: BoolArray
    batch_effect: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was measured on exactly one configuration, one entry each (O,): rows and columns of the table, samples per
    second in steps of `global_batch`, and how many steps. What cannot be true counts for nothing.
    """

    job: IntArray
    column: IntArray
    samples_per_s: FloatArray
    global_batch: FloatArray
    steps: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputTable:
    """(J, C) each; all 0 where a job cannot run.

    `goodput` is in reference samples per second (P50), `low` and `high` are its P10 and P90. The batch plan: a step
    takes `global_batch` samples, a slot at most `local_batch` in one of `accumulation` passes (1: none is accumulated).
    """

    goodput: FloatArray
    low: FloatArray
    high: FloatArray
    global_batch: IntArray
    local_batch: IntArray
    accumulation: IntArray


def goodput_table(
    models: JobModels, configurations: Configurations, observed: Observed | None = None
) -> GoodputTable:
    """The table of all jobs in all configurations."""
    shape = (models.noise_scale.size, configurations.slots.size)
    value, spread = np.zeros(shape), np.zeros(shape)
    batch = np.zeros(shape, np.int64)
    known = _cleaned(models)
    for kind in range(len(configurations.kinds)):
        columns = np.flatnonzero((configurations.kind == kind) & (configurations.slots >= 1))
        for rows, adapts in _blocks(known.adapts, columns.size):
            cells = _cells(known, configurations, rows, kind, columns)
            chosen = best_batch(cells) if adapts else cells.present
            at = np.ix_(rows, columns)
            value[at], batch[at] = goodput_of(cells, chosen), chosen
            spread[at] = _spread(cells, chosen)
    passes, local = split(batch, np.maximum(configurations.slots, 1), known.max_local[:, configurations.kind])
    if observed is not None:
        shift, spread = _corrected(known, configurations, observed, batch, spread)
        value *= np.exp(shift)
    runs = value > 0
    factor = np.exp(PERCENTILE_90 * spread)
    return GoodputTable(
        goodput=value,
        low=value / factor,
        high=value * factor,
        global_batch=np.where(runs, batch, 0),
        local_batch=np.where(runs, local, 0).astype(np.int64),
        accumulation=np.where(runs, passes, 0).astype(np.int64),
    )


def _cleaned(models: JobModels) -> JobModels:
    """The same with nothing unknown but noise scales and references (NaN)."""
    present = _positive(models.global_batch)
    reference = _positive(models.reference_batch)
    reference = np.where(np.isnan(reference), present, reference)
    adapts = models.adapts & ~np.isnan(reference)
    most = np.where(adapts, np.fmax(_positive(models.max_global), reference), reference)
    max_local = np.floor(models.max_local)
    effect = models.batch_effect
    return JobModels(
        throughput=models.throughput,
        noise_scale=models.noise_scale,
        reference_batch=reference,
        global_batch=np.where(adapts & ~np.isnan(present), present, reference),
        max_global=most,
        max_local=np.where(max_local >= 1, max_local, np.inf),
        adapts=adapts,
        batch_effect=None if effect is None else np.where(np.abs(effect) <= _MOST_EFFECT, effect, 1.0),
    )


def _positive(values: FloatArray) -> FloatArray:
    """Whole numbers from 1 on, NaN for anything else."""
    return np.where((values >= 1) & (values < 2**53), np.floor(values), np.nan)


def _blocks(adapts: BoolArray, columns: int) -> Iterator[tuple[IntArray, bool]]:
    """Rows of some jobs, and whether those adapt."""
    rows = max(1, _CELLS // max(columns, 1))
    for kind_of_job in (True, False):
        jobs = np.flatnonzero(adapts == kind_of_job)
        for start in range(0, jobs.size if columns else 0, rows):
            yield jobs[start : start + rows], kind_of_job


def _cells(
    known: JobModels, configurations: Configurations, rows: IntArray, kind: int, columns: IntArray
) -> Cells:
    slots = configurations.slots[None, columns]
    reference = known.reference_batch[rows, None]
    reference = np.where(np.isnan(reference), slots, reference)
    most = known.max_global[rows, None]
    most = np.where(np.isnan(most), slots, most)
    least = np.maximum(reference, slots)
    present = known.global_batch[rows, None]
    return Cells(
        model=known.throughput[rows, kind],
        slots=slots,
        nodes=configurations.nodes[None, columns],
        noise_scale=known.noise_scale[rows, None],
        batch_effect=1.0 if known.batch_effect is None else known.batch_effect[rows, None],
        reference=reference,
        least=least,
        most=most,
        present=np.where(np.isnan(present), slots, np.clip(present, np.minimum(least, most), most)),
        max_local=known.max_local[rows, kind, None],
    )


def _spread(cells: Cells, batch: FloatArray) -> FloatArray:
    """Standard deviation of the logarithm of the throughput with `batch` (j, c)."""
    _, local = split(batch, cells.slots, cells.max_local)
    spread = log_spread(cells.model, slots=cells.slots, nodes=cells.nodes, local_batch=local)
    return np.where(np.isfinite(spread), spread, GUESS_SPREAD)


def _corrected(
    known: JobModels,
    configurations: Configurations,
    observed: Observed,
    batch: IntArray,
    spread: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """The logarithm of the factor by which measurements correct the model in each cell, and the spread that remains.

    Model and measurements of a cell are averaged by the inverse squares of their errors.
    """
    measured = _believable(observed, batch)
    rows, columns = measured.job, measured.column
    kind, slots = configurations.kind[columns], configurations.slots[columns]
    passes, local = split(measured.global_batch, slots, known.max_local[rows, kind])
    seconds, _ = step_time(
        known.throughput[rows, kind],
        slots=slots,
        nodes=configurations.nodes[columns],
        local_batch=local,
        accumulation=passes - 1,
    )
    modelled = np.isfinite(seconds) & (seconds > 0)
    error = np.log(measured.samples_per_s / measured.global_batch * np.where(modelled, seconds, np.nan))
    doublings = np.log2(batch[rows, columns] / measured.global_batch)
    variance = _MEASURED_ERROR**2 + _STEP_ERROR**2 / measured.steps + (_BATCH_ERROR * doublings) ** 2
    certainty, error = np.where(modelled, 1.0 / variance, 0.0), np.where(modelled, error, 0.0)
    cell = rows * batch.shape[1] + columns
    gathered, pull = (
        np.bincount(cell, weights=one, minlength=batch.size).reshape(batch.shape)
        for one in (certainty, certainty * error)
    )
    own = 1.0 / np.maximum(spread, _MODEL_ERROR) ** 2
    left = np.where(gathered > 0, np.minimum(spread, 1.0 / np.sqrt(own + gathered)), spread)
    return pull / (own + gathered), left


def _believable(observed: Observed, batch: IntArray) -> Observed:
    """Those measurements that can be true, of cells that have a batch."""
    rows, columns = observed.job, observed.column
    valid = (rows >= 0) & (rows < batch.shape[0]) & (columns >= 0) & (columns < batch.shape[1])
    valid[valid] = batch[rows[valid], columns[valid]] > 0
    valid &= (observed.samples_per_s >= _SLOWEST) & (observed.samples_per_s <= _FASTEST)
    valid &= ~np.isnan(_positive(observed.global_batch)) & (observed.steps >= 1) & (observed.steps < np.inf)
    return Observed(**{one.name: getattr(observed, one.name)[valid] for one in fields(Observed)})
