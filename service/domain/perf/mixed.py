"""Speed of a job whose slots are of two device kinds, from the models of both. Pure; for many jobs at once.

The ranks divide a global batch M so that all compute equally long (dynamic batching: Tyagi and Sharma,
ACSOS'20, section III). With n_i slots of kind i, and c_i(b) the seconds that kind i computes for b samples,

    n_1 b_1 + n_2 b_2 = M,   c_1(b_1) = c_2(b_2),   step = max over i of step_i(b_i; slots, nodes)

where step_i is the model of a step of kind i (`throughput`) on all slots and nodes of the configuration. The
synchronisation is therefore that of the kind that synchronises more slowly. The paper divides in proportion to
measured speeds; equal times include the fixed costs of a pass, and minimise the longest compute. c_i includes
the passes of a kind whose memory holds fewer samples than b_i. Since c_1 grows and c_2 falls with b_1, the
equation is solved by bisection, within the bounds of the job's local batches.

Expected speeds, with which ranks start, differ in one point: below the smallest local batch that was tried, c_i
is proportional to the batch, as in the paper. The fixed cost of a model is its prior there, which could give a
slow kind a single sample. Ranks then measure and correct their speeds within a few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from service.domain.perf.batch_plan import MAX_PASSES, MIN_GAIN, Cells, efficiency_of
from service.domain.perf.throughput import (
    GUESS_SPREAD,
    LEAST,
    MOST,
    ThroughputModel,
    compute_time,
    log_spread,
    step_time,
)
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray, IntArray

_HALVINGS: Final = 20
"""Number of bisection steps: the result is exact to 1e-6 of the range."""
_TRIALS: Final = 16
"""Number of global batches tried for a job that adapts its batch, evenly spaced in the logarithm."""
_ROUNDING: Final = 0.01
"""Excess in samples over a whole number, or over a memory bound, that is an error of the bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixes:
    """Jobs (j,) in mixed configurations (c,) of the same two kinds. Tuples have one entry for each kind.

    Attributes:
        kinds: Indices of the two kinds.
        columns: Columns (c,) of the configurations.
        models: Models (j,) by kind.
        counts: Number of slots (c,) by kind.
        max_local: Samples (j,) that a slot can process at once, by kind; infinite where unknown.
        shares: Bounds (j, 2) of a slot's samples, relative to an even division.
        nodes: Number of nodes (c,).
    """

    kinds: tuple[int, int]
    columns: IntArray
    models: tuple[ThroughputModel, ThroughputModel]
    counts: tuple[IntArray, IntArray]
    max_local: tuple[FloatArray, FloatArray]
    shares: FloatArray
    nodes: IntArray

    @property
    def slots(self) -> IntArray:
        """Return the number of slots (c,) of both kinds."""
        return self.counts[0] + self.counts[1]

    def repeated(self, times: int) -> Mixes:
        """Return the mixes with each configuration repeated so many times in a row."""
        first, second = (np.repeat(one, times) for one in self.counts)
        columns, nodes = np.repeat(self.columns, times), np.repeat(self.nodes, times)
        return replace(self, counts=(first, second), columns=columns, nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """Batch plans of jobs in mixed configurations, arrays (j, c).

    `samples` are those of a slot in a step, by kind, before rounding to whole numbers. `longest` is the most of
    a pass, `passes` the most passes, and `spread` the standard deviation of the logarithm of `step_s`.
    """

    samples: tuple[FloatArray, FloatArray]
    step_s: FloatArray
    longest: FloatArray
    passes: FloatArray
    spread: FloatArray


def mixes_of(
    models: ThroughputModel,
    max_local: FloatArray,
    shares: FloatArray,
    configurations: Configurations,
    columns: IntArray,
) -> Iterator[Mixes]:
    """Yield the mixed `columns` by pair of kinds, for jobs with `models` and `max_local` (j, K), `shares` (j, 2)."""
    parts = configurations.parts
    assert parts is not None, "without parts no configuration is mixed"
    pairs = np.array([np.flatnonzero(parts[column])[:2] for column in columns.tolist()]).reshape(-1, 2)
    for first, second in np.unique(pairs, axis=0).tolist():
        here = columns[(pairs == (first, second)).all(axis=1)]
        yield Mixes(
            kinds=(first, second),
            columns=here,
            models=(models[:, first], models[:, second]),
            counts=(parts[here, first], parts[here, second]),
            max_local=(max_local[:, first], max_local[:, second]),
            shares=shares,
            nodes=configurations.nodes[here],
        )


def mixed_plan(mixes: Mixes, batch: FloatArray) -> MixedPlan:
    """Return the plans for global batches (j, c). A step is infinite where a plan is impossible."""
    samples = _samples(mixes, batch, _compute_s)
    steps, spreads, locals_, passes = [], [], [], []
    slots, nodes = mixes.slots[None, :], mixes.nodes[None, :]
    for kind in range(2):
        # Samples are whole. The remainder goes to the kind that takes more of them, where one costs less.
        larger = samples[kind] >= samples[1 - kind]
        whole = np.where(larger, np.ceil(samples[kind] - _ROUNDING), samples[kind])
        of_kind, local = _passes(whole, mixes.max_local[kind])
        seconds, _ = step_time(
            mixes.models[kind], slots=slots, nodes=nodes, local_batch=local, accumulation=of_kind - 1
        )
        spread = log_spread(mixes.models[kind], slots=slots, nodes=nodes, local_batch=local)
        possible = (samples[kind] > 0) & (of_kind <= MAX_PASSES)
        steps.append(np.where(possible, seconds, np.inf))
        spreads.append(np.where(np.isfinite(spread), spread, GUESS_SPREAD))
        locals_.append(local)
        passes.append(of_kind)
    return MixedPlan(
        samples=samples,
        step_s=np.maximum(*steps),
        longest=np.maximum(*locals_),
        passes=np.maximum(*passes),
        spread=np.maximum(*spreads),
    )


def mixed_goodput(cells: Cells, batch: FloatArray, plan: MixedPlan) -> FloatArray:
    """Return reference samples per second (j, c) with these batches; 0 where they are impossible."""
    possible = np.isfinite(plan.step_s) & (batch >= cells.slots) & (batch <= cells.most)
    worth = batch * efficiency_of(cells, batch)
    return np.where(possible, worth / np.where(possible, plan.step_s, 1.0), 0.0)


def best_mixed_batch(cells: Cells, mixes: Mixes) -> FloatArray:
    """Return the global batches (j, c) with the most goodput, or the present ones unless others are clearly better."""
    least, most = np.minimum(cells.least, cells.most), np.broadcast_to(cells.most, cells.present.shape)
    part = np.linspace(0.0, 1.0, _TRIALS)
    tried = np.rint(np.exp(np.log(least)[..., None] * (1 - part) + np.log(most)[..., None] * part))
    tried = np.concatenate([tried, cells.present[..., None]], axis=-1)  # (j, c, trials)
    # All trials are computed together, as if they were configurations.
    plan = mixed_plan(mixes.repeated(tried.shape[-1]), tried.reshape(len(tried), -1))
    step_s = plan.step_s.reshape(tried.shape)
    possible = np.isfinite(step_s) & (tried >= cells.slots[..., None]) & (tried <= most[..., None])
    worth = tried * efficiency_of(cells, tried)
    value = np.where(possible, worth / np.where(possible, step_s, 1.0), 0.0)
    best = value[..., :-1].argmax(axis=-1)[..., None]
    better = np.take_along_axis(value, best, axis=-1)[..., 0] > MIN_GAIN * value[..., -1]
    return np.where(better, np.take_along_axis(tried, best, axis=-1)[..., 0], cells.present)


def expected_samples(mixes: Mixes, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the samples (j, c) of a slot of each kind in the first step of a global batch (j, c)."""
    return _samples(mixes, batch, _proportional_s)


def _samples(
    mixes: Mixes, batch: FloatArray, compute_s: Callable[[Mixes, int, FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return the samples (j, c) of a slot of each kind, for which both compute equally long."""
    (first, second), even = mixes.counts, batch / mixes.slots
    least, most = mixes.shares[:, :1] * even, mixes.shares[:, 1:] * even
    least = np.minimum(np.maximum(least, 1.0), even)  # every rank needs a sample
    low = np.maximum(least, (batch - second * most) / first)
    high = np.minimum(most, (batch - second * least) / first)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        longer = compute_s(mixes, 0, middle) > compute_s(mixes, 1, (batch - first * middle) / second)
        low, high = np.where(longer, low, middle), np.where(longer, middle, high)
    middle = (low + high) / 2
    return middle, (batch - first * middle) / second


def _compute_s(mixes: Mixes, kind: int, samples: FloatArray) -> FloatArray:
    passes, local = _passes(samples, mixes.max_local[kind])
    return passes * compute_time(mixes.models[kind], np.maximum(local, LEAST))


def _proportional_s(mixes: Mixes, kind: int, samples: FloatArray) -> FloatArray:
    """Return the seconds of compute, proportional to the samples below the smallest local batch that was tried."""
    passes, local = _passes(samples, mixes.max_local[kind])
    tried = np.maximum(local, np.clip(mixes.models[kind].batch_low[:, None], LEAST, MOST))
    return passes * compute_time(mixes.models[kind], tried) * (local / tried)


def _passes(samples: FloatArray, max_local: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the passes of a slot in a step, and the samples of each."""
    passes = np.maximum(np.ceil((samples - _ROUNDING) / max_local[:, None]), 1.0)
    return passes, samples / passes
