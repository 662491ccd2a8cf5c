"""Best batch plan of jobs that may change their global batch, in many configurations at once. Pure.

Pollux (OSDI'21, section 4.1) tries fifty batches for each configuration, evenly spaced in the logarithm.
Here, about twenty local batches are tried for all configurations of a device kind together, since compute
depends on nothing else. The batches around the best of them are then compared exactly. This finds as much
goodput as fifty trials and is several times cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.perf.efficiency import efficiency
from service.domain.perf.throughput import ThroughputModel, step_time
from service.domain.shared.arrays import FloatArray, NumberArray

MIN_GAIN: Final = 1.05
"""Factor of goodput that a batch must promise to replace the present one (as in Pollux)."""
MAX_PASSES: Final = 1024
"""Largest number of passes in a step. A batch that needs more does not fit."""
_TRIALS: Final = 20
"""Number of local batches tried, evenly spaced in the logarithm over the range that any configuration may need."""
_MOST_NOISE: Final = 1e30
"""Noise scale from which on the noise counts as infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Jobs (j) on the configurations (c) of one device kind. Arrays broadcast to (j, c); `present` has that shape.

    Attributes:
        model: Model of each job (j,) on that kind.
        slots, nodes: Size of the configurations.
        noise_scale: Gradient noise scale in samples, NaN where unknown.
        reference, present: Global batch that the user wrote, and the present one.
        least, most: Bounds of the global batch. No batch is possible where `least` exceeds `most`.
        max_local: Samples that a slot can process at once, infinite where unknown.
        batch_effect: Exponent of the efficiency.
        counted_effect: Exponent of the efficiency by which ranks count their progress.
        compute_share: Compute of a step relative to that of whole gradients; None: 1.
        reach: Factor of synchronisation across nodes, for the topology level that a configuration crosses; None: 1.
        sample_work: Work of a sample in the unit of the stored goodput.
    """

    model: ThroughputModel
    slots: NumberArray
    nodes: NumberArray
    noise_scale: FloatArray
    reference: FloatArray
    present: FloatArray
    least: FloatArray
    most: FloatArray
    max_local: FloatArray
    batch_effect: FloatArray | float = 1.0
    counted_effect: FloatArray | float = 1.0
    compute_share: FloatArray | None = None
    reach: FloatArray | None = None
    sample_work: FloatArray | float = 1.0


def split(batch: NumberArray, slots: NumberArray, max_local: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the passes in a step and the samples of the longest pass, as ranks divide a batch among themselves."""
    longest = np.ceil(batch / slots)
    passes: FloatArray = np.maximum(np.ceil(longest / max_local), 1.0)
    return passes, np.ceil(longest / passes)


def efficiency_of(cells: Cells, batch: FloatArray) -> FloatArray:
    """Return the statistical efficiency of steps of `batch` (j, c) or (j, c, more)."""
    more = (...,) + (None,) * (batch.ndim - 2)
    effect = cells.batch_effect
    effect = effect if isinstance(effect, float) else effect[more]
    return efficiency(batch, cells.reference[more], cells.noise_scale[more], effect)


def goodput_of(cells: Cells, batch: FloatArray) -> FloatArray:
    """Return reference samples per second with `batch` (j, c) or (j, c, more); 0 where it is impossible."""
    more = (...,) + (None,) * (batch.ndim - 2)
    slots = cells.slots[more]
    passes, local = split(batch, slots, cells.max_local[more])
    seconds, _ = step_time(
        cells.model,
        slots=slots,
        nodes=cells.nodes[more],
        local_batch=local,
        accumulation=passes - 1,
        compute_share=None if cells.compute_share is None else cells.compute_share[more],
        reach=None if cells.reach is None else cells.reach[more],
    )
    worth = batch * efficiency_of(cells, batch)
    possible = (batch >= slots) & (batch <= cells.most[more]) & (passes <= MAX_PASSES)
    possible &= np.isfinite(seconds) & (seconds > 0)
    return np.divide(worth, seconds, out=np.zeros(possible.shape), where=possible)


def best_batch(cells: Cells) -> tuple[FloatArray, FloatArray]:
    """Return the global batch (j, c) with the most goodput, or the present one unless another is clearly better.

    The second result is the goodput of the returned batch.
    """
    candidates = np.stack([_filled(cells, one) for one in _candidates(cells)], axis=-1)
    value = goodput_of(cells, np.concatenate([candidates, cells.present[..., None]], axis=-1))
    best = value[..., :-1].argmax(axis=-1)
    most, now = _at(value, best), value[..., -1]
    better = most > MIN_GAIN * now
    return np.where(better, _at(candidates, best), cells.present), np.where(better, most, now)


def _filled(cells: Cells, batch: FloatArray) -> FloatArray:
    """Return `batch` within its bounds, rounded up until all slots process equally many samples in each pass.
    The additional samples cost no time.
    """
    inside = np.clip(np.rint(batch), np.minimum(cells.least, cells.most), cells.most)
    passes, local = split(inside, cells.slots, cells.max_local)
    return np.minimum(passes * local * cells.slots, cells.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """Results of the trials: local batches from `smallest` (j, 1) at even `step`s (j, 1) of the logarithm.

    `batch` and `value` are (j, c, trials): the global batch, and a number proportional to goodput.
    """

    smallest: FloatArray
    step: FloatArray
    batch: FloatArray
    value: FloatArray


def _candidates(cells: Cells) -> tuple[FloatArray, ...]:
    """Return candidate batches (j, c), at least one of which is close to the best.

    They are the best trial, the peak of a parabola at it, and one batch on either side of the trial: a pass
    more and a pass less, or half the distance to the next trial where one pass is enough.
    """
    trials = _tried(cells)
    inside = (trials.batch >= cells.least[..., None]) & (trials.batch <= cells.most[..., None])
    best = np.where(inside, trials.value, -1.0).argmax(axis=-1)
    tried = _at(trials.batch, best)
    full, half_step = cells.max_local * cells.slots, np.exp(trials.step / 2)
    return (
        tried,
        _peak(trials, best) * cells.slots,
        np.where(tried > full, tried - full, tried / half_step),
        np.where(tried >= full, tried + full, tried * half_step),
    )


def _tried(cells: Cells) -> _Trials:
    possible = cells.least <= cells.most
    smallest = np.log(np.where(possible, cells.least / cells.slots, cells.most).min(axis=1, keepdims=True))
    largest = np.log((cells.most / cells.slots).max(axis=1, keepdims=True))
    step = np.maximum(largest - smallest, 0.0) / (_TRIALS - 1)
    samples = np.exp(smallest + step * np.arange(_TRIALS))
    # A pass that is not full wastes time: beyond the first pass, only full passes are tried.
    passes = np.maximum(np.rint(samples / cells.max_local), 1.0)
    full = samples >= cells.max_local * np.exp(-step / 2)
    samples = np.where(full, passes * cells.max_local, samples)
    seconds, _ = step_time(
        cells.model,
        slots=cells.slots[..., None],
        nodes=cells.nodes[..., None],
        local_batch=(samples / passes)[:, None, :],
        accumulation=(passes - 1)[:, None, :],
        compute_share=None if cells.compute_share is None else cells.compute_share[..., None],
        reach=None if cells.reach is None else cells.reach[..., None],
    )
    batch = samples[:, None, :] * cells.slots[..., None]
    # Only the part of `efficiency` that depends on the batch is computed, since this code is hot.
    noise = np.minimum(np.where(cells.noise_scale >= 0, cells.noise_scale, 0.0), _MOST_NOISE)[..., None]
    effect = cells.batch_effect
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        wasted = noise + batch if isinstance(effect, float) else (noise + batch) ** effect[..., None]
        value = batch / (seconds * wasted)
    return _Trials(smallest=smallest, step=step, batch=batch, value=value)


def _peak(trials: _Trials, best: NumberArray) -> FloatArray:
    """Return the local batch (j, c) at the peak of a parabola through the logarithms of three trials."""
    middle = np.clip(best, 1, _TRIALS - 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        left, here, right = (np.log(_at(trials.value, middle + shift)) for shift in (-1, 0, 1))
        peak = (left - right) / (left - 2 * here + right) / 2
    peak = np.where(left + right < 2 * here, np.clip(peak, -1.0, 1.0), np.where(right > left, 1.0, -1.0))
    local: FloatArray = np.exp(trials.smallest + trials.step * (middle + peak))
    return local


def _at(values: FloatArray, index: NumberArray) -> FloatArray:
    """Return the values (j, c, n) that an index (j, c) selects."""
    # This is several times faster than `np.take_along_axis`.
    first = np.arange(0, values.size, values.shape[-1]).reshape(index.shape)
    return values.reshape(-1).take(first + index)
