"""Goodput, its interval and the best batch plan of every job in every configuration, for all jobs at once. Pure.

Goodput is throughput times statistical efficiency (Pollux, OSDI'21, sections 3 and 4.1). Measurements of
exactly one configuration correct the model there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from service.domain.perf.batch_plan import Cells, best_batch, efficiency_of, goodput_of, split
from service.domain.perf.depth import compute_share
from service.domain.perf.levels import reach_at
from service.domain.perf.mixed import best_mixed_batch, mixed_goodput, mixed_plan, mixes_of
from service.domain.perf.throughput import (
    GUESS_SPREAD,
    PERCENTILE_90,
    ThroughputModel,
    log_spread,
    step_time,
)
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_CELLS: Final = 1 << 13
"""Number of (job, configuration) pairs computed at once, so that temporaries stay in the cache."""
_MOST_EFFECT: Final = 10.0
"""Largest absolute exponent of the measured batch effect that is believed."""

_MODEL_ERROR: Final = 0.05
"""Smallest standard deviation of the logarithm of a model's error at a single configuration."""
_MEASURED_ERROR: Final = 0.05
"""Smallest standard deviation of the logarithm of a measurement of any length.

The speed of a machine varies over the day.
"""
_STEP_ERROR: Final = 0.3
"""Standard deviation of the logarithm that a measurement of a single step adds."""
_BATCH_ERROR: Final = 0.1
"""Standard deviation of the logarithm for each doubling between the measured and the planned batch."""
_SLOWEST, _FASTEST = 1e-9, 1e15
"""Smallest and largest number of samples per second that is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModels:
    """Knowledge of `J` jobs on `K` device kinds. A value that is NaN or not positive is unknown.

    Attributes:
        throughput: Models of shape (J, K).
        noise_scale: Gradient noise scale in samples (J,).
        reference_batch: Samples of a step as the user wrote it (J,). If it is unknown, the present batch is used. If that
            is unknown too, a slot processes one sample a step, so the unit is the job's own.
        global_batch, max_global: Samples of a step now, and their upper bound (J,). Unknown: the reference.
        max_local: Samples that a slot can process at once (J, K). If it is unknown, there is no bound.
        adapts: True where the global batch may change (J,).
        batch_effect: Exponent of efficiency observed for larger batches (J,); None: the one that the noise predicts.
        counted_effect: Exponent of efficiency by which ranks count their progress (J,). None: 1.
        shares: Bounds of a slot's samples in a mixed configuration, relative to an even division (J, 2); NaN: no mixes.
        min_depth: Smallest share of the layers through which ranks back-propagate (J,). Unknown, or None: all layers.
        reach: Factors of synchronisation across topology levels (J, K, LEVELS), from `levels`; None: those of the prior.
        sample_work: Work of a sample in the unit of goodput (J,), below 1 where the job counts steps. None: 1.
    """

    throughput: ThroughputModel
    noise_scale: FloatArray
    reference_batch: FloatArray
    global_batch: FloatArray
    max_global: FloatArray
    max_local: FloatArray
    adapts: BoolArray
    batch_effect: FloatArray | None = None
    counted_effect: FloatArray | None = None
    shares: FloatArray | None = None
    min_depth: FloatArray | None = None
    reach: FloatArray | None = None
    sample_work: FloatArray | None = None

    def of_rows(self, rows: IntArray) -> JobModels:
        """Return the knowledge of the jobs `rows`, in that order; a job may come several times."""
        known: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        chosen: dict[str, Any] = {name: None if one is None else one[rows] for name, one in known.items()}
        return JobModels(**chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements of exactly one configuration each, as flat arrays (O,).

    `job` and `column` are the row and column of the table, `samples_per_s` was measured in steps of
    `global_batch` samples, and `steps` is their number. Values that cannot be true are ignored.
    """

    job: IntArray
    column: IntArray
    samples_per_s: FloatArray
    global_batch: FloatArray
    steps: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputTable:
    """Table of goodput and batch plans, arrays of shape (J, C), all 0 where a job cannot run.

    Attributes:
        goodput: Reference samples per second, P50.
        low, high: P10 and P90 of the goodput.
        efficiency: Progress per sample in the planned batch. The other rates divided by it are plain samples per second.
            Measurements report those, and they reduce the number of samples that a script has announced.
        counted: Progress per sample that the ranks count there: the efficiency with the exponent of their last order.
        global_batch: Planned samples of a step.
        local_batch: Largest number of samples of a slot in one pass.
        accumulation: Passes of a step (1: no accumulation).
    """

    goodput: FloatArray
    low: FloatArray
    high: FloatArray
    efficiency: FloatArray
    counted: FloatArray
    global_batch: IntArray
    local_batch: IntArray
    accumulation: IntArray


def goodput_table(
    models: JobModels, configurations: Configurations, observed: Observed | None = None
) -> GoodputTable:
    """Return the goodput table of all jobs in all configurations."""
    shape = (models.noise_scale.size, configurations.slots.size)
    table = _empty(shape)
    known = _cleaned(models)
    mixed = configurations.mixed
    for kind in range(len(configurations.kinds)):
        columns = np.flatnonzero((configurations.kind == kind) & (configurations.slots >= 1) & ~mixed)
        for rows, adapts in _blocks(known.adapts, columns.size):
            cells = _cells(known, configurations, rows, kind, columns)
            batch, goodput = best_batch(cells) if adapts else (cells.present, None)
            _fill(table, np.ix_(rows, columns), cells, batch, goodput)
    if mixed.any() and known.shares is not None:
        _fill_mixed(table, known, configurations, np.flatnonzero(mixed))
    if observed is not None:
        _correct(table, known, configurations, observed)
    return table


def table_at_batches(
    models: JobModels,
    row: int,
    batches: IntArray,
    configurations: Configurations,
    observed: Observed | None = None,
) -> GoodputTable:
    """Return the goodput table (B, C) of the job `row` of `models`, with each of the global `batches` (B,).

    Of `observed`, the measurements of that job count. One with another batch counts less.
    """
    count = batches.size
    rows = np.arange(count)
    table = _empty((count, configurations.slots.size))
    known = _cleaned(models.of_rows(np.full(count, row)))
    mixed, batch = configurations.mixed, batches.astype(np.float64)[:, None]
    for kind in range(len(configurations.kinds)):
        columns = np.flatnonzero((configurations.kind == kind) & (configurations.slots >= 1) & ~mixed)
        cells = _cells(known, configurations, rows, kind, columns)
        _fill(table, np.ix_(rows, columns), cells, np.broadcast_to(batch, (count, columns.size)), None)
    if mixed.any() and known.shares is not None:
        _fill_mixed(table, known, configurations, np.flatnonzero(mixed), batch)
    if observed is not None:
        own = np.tile(np.flatnonzero(observed.job == row), count)
        spread = {one.name: getattr(observed, one.name)[own] for one in fields(Observed)}
        _correct(
            table, known, configurations, Observed(**{**spread, "job": np.repeat(rows, own.size // count)})
        )
    return table


def _empty(shape: tuple[int, int]) -> GoodputTable:
    rates = {name: np.zeros(shape) for name in ("goodput", "low", "high", "efficiency", "counted")}
    plans = {name: np.zeros(shape, np.int64) for name in ("global_batch", "local_batch", "accumulation")}
    both: dict[str, Any] = rates | plans
    return GoodputTable(**both)


def _fill(
    table: GoodputTable,
    at: tuple[IntArray, ...],
    cells: Cells,
    batch: FloatArray,
    goodput: FloatArray | None,
) -> None:
    """Store the results of `batch` (j, c). `goodput` (j, c) is its goodput where it is already computed."""
    goodput = goodput_of(cells, batch) if goodput is None else goodput
    passes, local = split(batch, cells.slots, cells.max_local)
    spread = log_spread(cells.model, slots=cells.slots, nodes=cells.nodes, local_batch=local)
    spread = np.where(np.isfinite(spread), spread, GUESS_SPREAD)
    _store(table, at, cells, goodput, spread, (batch, local, passes))


def _store(
    table: GoodputTable,
    at: tuple[IntArray, ...],
    cells: Cells,
    goodput: FloatArray,
    spread: FloatArray,
    plan: tuple[FloatArray, FloatArray, FloatArray],
) -> None:
    """Store goodput (j, c), with the standard deviation of its logarithm, and the plan: global and local batch, passes."""
    factor, runs, batch = np.exp(PERCENTILE_90 * spread), goodput > 0, plan[0]
    goodput = goodput * cells.sample_work
    table.goodput[at], table.low[at], table.high[at] = goodput, goodput / factor, goodput * factor
    table.efficiency[at] = np.where(runs, efficiency_of(cells, batch), 0.0)
    counted = replace(cells, batch_effect=cells.counted_effect)
    table.counted[at] = np.where(runs, efficiency_of(counted, batch), 0.0)
    table.global_batch[at], table.local_batch[at], table.accumulation[at] = (
        np.where(runs, one, 0) for one in plan
    )


def _fill_mixed(
    table: GoodputTable,
    known: JobModels,
    configurations: Configurations,
    columns: IntArray,
    batches: FloatArray | None = None,
) -> None:
    """Store the results of the mixed configurations for the jobs that mix kinds, with `batches` (J, 1) if given."""
    assert known.shares is not None
    jobs = np.flatnonzero(~np.isnan(known.shares).any(axis=1))
    for rows, adapts in _blocks(known.adapts[jobs], columns.size):
        own = jobs[rows]
        for mixes in mixes_of(
            known.throughput[own], known.max_local[own], known.shares[own], configurations, columns
        ):
            # The model and the memory bound of the cells are not used: those of the mix are.
            cells = _cells(known, configurations, own, mixes.kinds[0], mixes.columns)
            if batches is not None:
                batch = np.broadcast_to(batches[own], cells.present.shape)
            else:
                batch = best_mixed_batch(cells, mixes) if adapts else cells.present
            plan = mixed_plan(mixes, batch)
            goodput, at = mixed_goodput(cells, batch, plan), np.ix_(own, mixes.columns)
            _store(table, at, cells, goodput, plan.spread, (batch, np.ceil(plan.longest), plan.passes))


def _cleaned(models: JobModels) -> JobModels:
    """Return the models with only noise scales and references left unknown (NaN)."""
    present = _positive(models.global_batch)
    reference = _positive(models.reference_batch)
    reference = np.where(np.isnan(reference), present, reference)
    adapts = models.adapts & ~np.isnan(reference)
    most = np.where(adapts, np.fmax(_positive(models.max_global), reference), reference)
    max_local = _positive(models.max_local)
    effect = models.batch_effect
    return replace(
        models,
        reference_batch=reference,
        global_batch=np.where(adapts & ~np.isnan(present), present, reference),
        max_global=most,
        max_local=np.where(np.isnan(max_local), np.inf, max_local),
        adapts=adapts,
        batch_effect=None if effect is None else np.where(np.abs(effect) <= _MOST_EFFECT, effect, 1.0),
    )


def _positive(values: FloatArray) -> FloatArray:
    """Return the values rounded down to whole numbers from 1, NaN for anything else."""
    return np.where((values >= 1) & (values < 2**53), np.floor(values), np.nan)


def _blocks(adapts: BoolArray, columns: int) -> Iterator[tuple[IntArray, bool]]:
    """Yield blocks of job rows, each with whether the jobs of the block adapt their batch."""
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
        counted_effect=1.0 if known.counted_effect is None else known.counted_effect[rows, None],
        reference=reference,
        least=least,
        most=most,
        present=np.where(np.isnan(present), slots, np.clip(present, np.minimum(least, most), most)),
        max_local=known.max_local[rows, kind, None],
        compute_share=_compute_share(known, rows[:, None], slots),
        sample_work=1.0 if known.sample_work is None else known.sample_work[rows, None],
        reach=reach_at(known.reach, configurations.crosses, rows[:, None], kind, columns),
    )


def _compute_share(known: JobModels, rows: IntArray, slots: IntArray) -> FloatArray | None:
    """Return the compute of steps on these slots relative to whole gradients, for rows (…); None if all are whole."""
    if known.min_depth is None or np.isnan(known.min_depth).all():
        return None
    return compute_share(known.min_depth[rows], slots)


def _correct(
    table: GoodputTable, known: JobModels, configurations: Configurations, observed: Observed
) -> None:
    """Correct the measured cells towards their measurements and narrow their intervals.

    The logarithms of model and measurements of a cell are averaged with the inverse squares of their errors
    as weights.
    """
    measured = _believable(observed, table.goodput > 0)
    rows, columns = measured.job, measured.column
    seconds = _modelled_s(known, configurations, measured)
    modelled = np.isfinite(seconds) & (seconds > 0)
    error = np.log(measured.samples_per_s / measured.global_batch * np.where(modelled, seconds, np.nan))
    doublings = np.log2(table.global_batch[rows, columns] / measured.global_batch)
    variance = _MEASURED_ERROR**2 + _STEP_ERROR**2 / measured.steps + (_BATCH_ERROR * doublings) ** 2
    certainty, error = np.where(modelled, 1.0 / variance, 0.0), np.where(modelled, error, 0.0)
    if configurations.parts is not None:
        _correct_mixes(table, configurations, measured, error, certainty)
    cells, cell = np.unique(rows * table.goodput.shape[1] + columns, return_inverse=True)
    at = np.unravel_index(cells, table.goodput.shape)
    spread = np.log(table.high[at] / table.goodput[at]) / PERCENTILE_90
    total = 1.0 / np.maximum(spread, _MODEL_ERROR) ** 2 + np.bincount(cell, certainty, cells.size)
    goodput = table.goodput[at] * np.exp(np.bincount(cell, certainty * error, cells.size) / total)
    factor = np.exp(PERCENTILE_90 * np.minimum(spread, 1.0 / np.sqrt(total)))
    table.goodput[at], table.low[at], table.high[at] = goodput, goodput / factor, goodput * factor


def _correct_mixes(
    table: GoodputTable,
    configurations: Configurations,
    measured: Observed,
    error: FloatArray,
    certainty: FloatArray,
) -> None:
    """Correct a job's mixed cells without measurements by the mean error of those with measurements.

    No model is fitted to mixed steps. Otherwise a job that leaves a slow mix would try the next one.
    """
    mixed = configurations.mixed
    here = mixed[measured.column] & (certainty > 0)
    jobs = measured.job[here]
    total = np.bincount(jobs, certainty[here], len(table.goodput))
    mean = np.bincount(jobs, certainty[here] * error[here], len(table.goodput)) / np.maximum(total, 1e-12)
    others = np.broadcast_to(mixed, table.goodput.shape).copy()
    others[jobs, measured.column[here]] = False
    factor = np.where(others, np.exp(mean)[:, None], 1.0)
    for values in (table.goodput, table.low, table.high):
        np.multiply(values, factor, out=values)


def _modelled_s(known: JobModels, configurations: Configurations, measured: Observed) -> FloatArray:
    """Return the modelled seconds (O,) of the measured steps."""
    rows, columns = measured.job, measured.column
    kind, slots = configurations.kind[columns], configurations.slots[columns]
    passes, local = split(measured.global_batch, slots, known.max_local[rows, kind])
    seconds, _ = step_time(
        known.throughput[rows, kind],
        slots=slots,
        nodes=configurations.nodes[columns],
        local_batch=local,
        accumulation=passes - 1,
        compute_share=_compute_share(known, rows, slots),
        reach=reach_at(known.reach, configurations.crosses, rows, kind, columns),
    )
    for index in np.flatnonzero(configurations.mixed[columns]).tolist():
        assert known.shares is not None, "a job without shares has no goodput in a mixed configuration"
        row = rows[index : index + 1]
        (mixes,) = mixes_of(
            known.throughput[row], known.max_local[row], known.shares[row], configurations, columns[[index]]
        )
        seconds[index] = mixed_plan(mixes, measured.global_batch[None, [index]]).step_s[0, 0]
    return seconds


def _believable(observed: Observed, runs: BoolArray) -> Observed:
    """Return the measurements that can be true, of cells in which a job can run."""
    rows, columns = observed.job, observed.column
    valid = (rows >= 0) & (rows < runs.shape[0]) & (columns >= 0) & (columns < runs.shape[1])
    valid[valid] = runs[rows[valid], columns[valid]]
    valid &= (observed.samples_per_s >= _SLOWEST) & (observed.samples_per_s <= _FASTEST)
    valid &= ~np.isnan(_positive(observed.global_batch)) & (observed.steps >= 1) & (observed.steps < np.inf)
    return Observed(**{one.name: getattr(observed, one.name)[valid] for one in fields(Observed)})
