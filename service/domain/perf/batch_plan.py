"""The best batch plan of a job that may change its global batch, in many configurations at once. Pure.

Pollux (OSDI'21, section 4.1) tries fifty batches, evenly in the logarithm, for each configuration. Here some twenty local
batches are tried for all configurations of a device kind together, since compute depends on nothing else; the batches
around the best of them are then compared exactly. That finds as much goodput as fifty do, and is several times cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.arrays import FloatArray, NumberArray
from service.domain.perf.efficiency import efficiency
from service.domain.perf.throughput import ThroughputModel, step_time

MIN_GAIN: Final = 1.05
"""Another batch than the present one must promise at least this factor of goodput (as Pollux has it)."""
MAX_PASSES: Final = 1024
"""A step that takes more passes than this is none: a batch that needs them does not fit."""
_TRIALS: Final = 20
"""Local batches tried, evenly in the logarithm, from the smallest to the largest that any configuration may need."""
_LOUDEST: Final = 1e30
"""A noise scale beyond this is as good as infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Some jobs (j) on the configurations (c) of one device kind; every array broadcasts to (j, c).

    Attributes:
        model: of each job (j,) on that kind.
        slots, nodes: of the configurations.
        noise_scale: in samples; NaN where unknown.
        batch_effect: exponent of the efficiency.
        reference, present: global batches that the user wrote, and that the job has now.
        least, most: bounds of the global batch; there is no batch where `least` exceeds `most`.
        max_local: samples that a slot can take at once, infinite where unknown.
    """

    model: ThroughputModel
    slots: NumberArray
    nodes: NumberArray
    noise_scale: FloatArray
    batch_effect: FloatArray | float
    reference: FloatArray
    present: FloatArray
    least: FloatArray
    most: FloatArray
    max_local: FloatArray


def split(batch: NumberArray, slots: NumberArray, max_local: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Passes in a step, and the samples of the longest: as ranks divide a batch among themselves."""
    longest = np.ceil(batch / slots)
    passes: FloatArray = np.maximum(np.ceil(longest / max_local), 1.0)
    return passes, np.ceil(longest / passes)


def efficiency_of(cells: Cells, batch: FloatArray) -> FloatArray:
    """What a sample is worth in steps of `batch` (j, c) or (j, c, more)."""
    more = (...,) + (None,) * (batch.ndim - 2)
    effect = cells.batch_effect
    effect = effect if isinstance(effect, float) else effect[more]
    return efficiency(batch, cells.reference[more], cells.noise_scale[more], effect)


def goodput_of(cells: Cells, batch: FloatArray) -> FloatArray:
    """Reference samples per second with `batch` (j, c) or (j, c, more); 0 where it cannot be."""
    more = (...,) + (None,) * (batch.ndim - 2)
    slots = cells.slots[more]
    passes, local = split(batch, slots, cells.max_local[more])
    seconds, _ = step_time(
        cells.model, slots=slots, nodes=cells.nodes[more], local_batch=local, accumulation=passes - 1
    )
    worth = batch * efficiency_of(cells, batch)
    possible = (batch >= slots) & (batch <= cells.most[more]) & (passes <= MAX_PASSES)
    possible &= np.isfinite(seconds) & (seconds > 0)
    return np.divide(worth, seconds, out=np.zeros(possible.shape), where=possible)


def best_batch(cells: Cells) -> FloatArray:
    """The global batch (j, c) with the most goodput, and the present one where none is clearly better."""
    candidates = np.stack([_filled(cells, one) for one in _candidates(cells)], axis=-1)
    value = goodput_of(cells, np.concatenate([candidates, cells.present[..., None]], axis=-1))
    best = value[..., :-1].argmax(axis=-1)
    better = _at(value, best) > MIN_GAIN * value[..., -1]
    return np.where(better, _at(candidates, best), cells.present)


def _filled(cells: Cells, batch: FloatArray) -> FloatArray:
    """`batch` within its bounds, and as many more samples as all slots take in the same time."""
    inside = np.clip(np.rint(batch), np.minimum(cells.least, cells.most), cells.most)
    passes, local = split(inside, cells.slots, cells.max_local)
    return np.minimum(passes * local * cells.slots, cells.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """What was tried: local batches at even `step`s (j, 1) of the logarithm from `smallest` (j, 1) on.

    `batch` and `value` are (j, c, trials): global batch, and a number in proportion to goodput.
    """

    smallest: FloatArray
    step: FloatArray
    batch: FloatArray
    value: FloatArray


def _candidates(cells: Cells) -> tuple[FloatArray, ...]:
    """Batches (j, c) of which one is nearly the best: the best trial, the peak of a parabola there, and on either side
    of the trial a pass more and less, or half the way to the next where one pass is enough.
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
    # Passes that are not full waste most: beyond what fits into one, only full ones are tried.
    passes = np.maximum(np.rint(samples / cells.max_local), 1.0)
    full = samples >= cells.max_local * np.exp(-step / 2)
    samples = np.where(full, passes * cells.max_local, samples)
    seconds, _ = step_time(
        cells.model,
        slots=cells.slots[..., None],
        nodes=cells.nodes[..., None],
        local_batch=(samples / passes)[:, None, :],
        accumulation=(passes - 1)[:, None, :],
    )
    batch = samples[:, None, :] * cells.slots[..., None]
    # Of what `efficiency` computes only the part that the batch decides: this is the hot path.
    noise = np.minimum(np.where(cells.noise_scale >= 0, cells.noise_scale, 0.0), _LOUDEST)[..., None]
    effect = cells.batch_effect
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        wasted = noise + batch if isinstance(effect, float) else (noise + batch) ** effect[..., None]
        value = batch / (seconds * wasted)
    return _Trials(smallest=smallest, step=step, batch=batch, value=value)


def _peak(trials: _Trials, best: NumberArray) -> FloatArray:
    """The local batch (j, c) at which a parabola through the logarithms of three trials peaks."""
    middle = np.clip(best, 1, _TRIALS - 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        left, here, right = (np.log(_at(trials.value, middle + shift)) for shift in (-1, 0, 1))
        peak = (left - right) / (left - 2 * here + right) / 2
    peak = np.where(left + right < 2 * here, np.clip(peak, -1.0, 1.0), np.where(right > left, 1.0, -1.0))
    local: FloatArray = np.exp(trials.smallest + trials.step * (middle + peak))
    return local


def _at(values: FloatArray, index: NumberArray) -> FloatArray:
    """Of (j, c, n) values, those that an index (j, c) picks."""
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
