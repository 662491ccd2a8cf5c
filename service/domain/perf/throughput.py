"""Model of the time of a training step on any number of slots and nodes with any batch, with its intervals. Pure.

The form is Pollux's (OSDI'21, section 3.2). A step consists of compute and synchronisation, which partly
overlap:

    step = accumulation * compute + (compute ** gamma + sync ** gamma) ** (1 / gamma)
    compute = (alpha_c + beta_c * local_batch) * exp(bend(local_batch))
    sync = 0                                                  on one slot
           alpha_r + beta_r * log2(slots / 2)                 on one node
           alpha_n + beta_n * log2(slots / 2)                 on several nodes
               + beta_p * log2(slots / nodes)                 more on exactly two
             all of it times reach                            across a topology level (`levels`)

The form differs from Pollux where the measured profiles (`benchmarks/fit.py`) contradict it:

- Synchronisation grows with the logarithm of the slots, not with their number. A line through few slots
  overestimates it several times over at 64 slots.
- Two full nodes are slower than four half-full ones, because all traffic uses one pair of links.
- Compute is not linear in the batch, because of a floor, padding, and kernels that prefer certain sizes. So
  it bends at `KNOTS` points, evenly spaced in the logarithm of the batch over the range that was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.domain.shared.arrays import BoolArray, FloatArray, NumberArray

KNOTS = 8
PERCENTILE_90 = 1.2816
"""Quantile of the standard normal distribution: exp(+-this * log_spread) around a prediction gives its P10 and P90."""
GUESS_SPREAD = 0.7
"""Standard deviation of the logarithm of a prediction without any measurement: P10 and P90 are a factor of six apart."""
GROWTH_PER_DOUBLING = 0.06
"""Increase of the spread for each doubling of slots, nodes or batch beyond the largest tried."""
FIRST_SLOTS, FIRST_NODES = 0.2, 0.3
"""Extra spread for more slots where at most two were tried, and for several nodes where one was tried.

Such measurements do not show how synchronisation grows.
"""
LEAST, MOST = 1e-6, 1e12
"""Limits of samples per slot and of slots. Single precision can still multiply values within them."""

_OPTIMISTIC_SYNC = 0.01
"""Synchronisation as a share of compute before any measurement: close to 0, so that larger sizes are tried (Pollux)."""
_FEATURES = 7
"""Number of arrays that every step needs: five features of its size, the batch and the passes."""
_BLOCK = 1 << 16
"""Number of elements computed at once, so that temporaries stay in the cache."""

Float32Array: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NumberArray | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Parameters of many models, as arrays of one shape M that the caller chooses, such as (jobs,) or (jobs, kinds).

    Attributes:
        alpha_c, beta_c: Compute, in seconds, and in seconds for each sample of the local batch.
        alpha_r, beta_r: Synchronisation within a node, in seconds on two slots, and for each doubling.
        alpha_n, beta_n, beta_p: The same across nodes, and the seconds that each doubling of the slots of a node adds on
            two nodes.
        gamma: Overlap, from 1 (compute and synchronisation in sequence) to 10 (fully overlapped).
        bend: Logarithm of compute relative to the line, of shape M + (KNOTS,), at even steps of log(local batch).
        batch_low, batch_high: Smallest and largest local batch tried, in samples; equal where nothing bends.
        spread: Standard deviation of the logarithm of the step time within the range that was tried.
        slots_tried, nodes_tried: Largest size tried by the job, or by its class where the model relies on that; 0 for none.
    """

    alpha_c: FloatArray
    beta_c: FloatArray
    alpha_r: FloatArray
    beta_r: FloatArray
    alpha_n: FloatArray
    beta_n: FloatArray
    beta_p: FloatArray
    gamma: FloatArray
    bend: FloatArray
    batch_low: FloatArray
    batch_high: FloatArray
    spread: FloatArray
    slots_tried: FloatArray
    nodes_tried: FloatArray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape M of the models."""
        return self.alpha_c.shape

    def __getitem__(self, index: Any) -> ThroughputModel:
        """Return the models that a numpy index of M selects: `models[:, kind_of_column]` of (jobs, kinds) is
        (jobs, columns).
        """
        return ThroughputModel(**{one.name: getattr(self, one.name)[index] for one in fields(self)})

    def where(self, mask: BoolArray, other: ThroughputModel) -> ThroughputModel:
        """Return these models where `mask` (M) is true, and `other` (M) elsewhere."""
        return ThroughputModel(
            **{
                one.name: np.where(
                    mask[..., None] if one.name == "bend" else mask,
                    getattr(self, one.name),
                    getattr(other, one.name),
                )
                for one in fields(self)
            }
        )

    def faster(self, factor: Numbers) -> ThroughputModel:
        """Return the models with every time divided by `factor` (broadcast to M), so that their scaling is unchanged."""
        times = ("alpha_c", "beta_c", "alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")
        return replace(self, **{name: getattr(self, name) / factor for name in times})


def prior(*, compute_s: Numbers, local_batch: Numbers) -> ThroughputModel:
    """Return the models of jobs without measurements.

    A pass over `local_batch` samples takes `compute_s`; both have shape M. Scaling is almost perfect, as in
    Pollux, so that larger sizes are tried. The interval is wide.
    """
    compute, batch = np.broadcast_arrays(np.asarray(compute_s, float), np.asarray(local_batch, float))
    none, sync = np.zeros(compute.shape), _OPTIMISTIC_SYNC * compute
    return ThroughputModel(
        alpha_c=compute / 2,
        beta_c=compute / 2 / batch,
        alpha_r=sync,
        beta_r=sync,
        alpha_n=1.1 * sync,
        beta_n=1.1 * sync,
        beta_p=sync,
        gamma=none + 2.5,
        bend=np.zeros((*compute.shape, KNOTS)),
        batch_low=batch.copy(),
        batch_high=batch.copy(),
        spread=none + GUESS_SPREAD,
        slots_tried=none,
        nodes_tried=none,
    )


def step_time(
    model: ThroughputModel,
    *,
    slots: Numbers,
    nodes: Numbers,
    local_batch: Numbers,
    accumulation: Numbers = 0,
    compute_share: Numbers | None = None,
    reach: Numbers | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of a step, and the seconds of synchronisation in it that compute does not hide.

    The axes of the arguments are the model's axes, of full length or of length 1, followed by any others:
    with models (jobs,), `slots` may be (1, columns). `accumulation` is the number of passes before the last,
    whose gradients are not synchronised (Pollux's s). `compute_share` multiplies compute, and `reach` the
    synchronisation across nodes; None: 1. The result is infinite where a step is impossible: an
    argument is NaN, there is less than one slot, there are no samples, or there are more nodes than slots.

    The arithmetic is in single precision, accurate to six digits. An argument that does not vary along an
    axis should have length 1 there, which is cheaper.
    """
    batch, passes = np.asarray(local_batch), np.asarray(accumulation)
    batch = np.where((batch >= LEAST) & (batch <= MOST), batch, np.nan).astype(np.float32)
    passes = np.where((passes >= 0) & (passes <= MOST), passes, np.nan).astype(np.float32)
    arrays = [*_clean_features(np.asarray(slots), np.asarray(nodes)), batch, passes]
    if compute_share is not None:
        arrays.append(np.asarray(compute_share, np.float32))
    if reach is not None:
        arrays[2:5] = (one * np.asarray(reach, np.float32) for one in arrays[2:5])
    axes = max(len(model.shape), *(one.ndim for one in arrays))
    arrays = [_leading(one, axes) for one in arrays]
    shape = np.broadcast_shapes(
        model.shape + (1,) * (axes - len(model.shape)), *(one.shape for one in arrays)
    )
    step, sync = np.empty(shape), np.empty(shape)
    if step.size == 0:
        return step, sync
    rows = max(1, _BLOCK * shape[0] // step.size)
    for start in range(0, shape[0], rows):
        block = slice(start, start + rows)
        part = model[block] if model.shape[0] > 1 else model
        pieces = [one[block] if one.shape[0] > 1 else one for one in arrays]
        _block_step(part, axes, pieces, step[block], sync[block])
    return step, sync


def compute_time(model: ThroughputModel, local_batch: Numbers) -> FloatArray:
    """Return the seconds of one pass forward and backward; shapes as in `step_time`, `local_batch` positive."""
    batch = np.asarray(local_batch)
    axes = max(batch.ndim, len(model.shape))
    return _compute(model, axes, batch.astype(np.float32)).astype(np.float64)


def log_spread(model: ThroughputModel, *, slots: Numbers, nodes: Numbers, local_batch: Numbers) -> FloatArray:
    """Return the standard deviation of the logarithm of the step time; shapes as in `step_time`.

    It equals the model's `spread` within the range that was tried, and grows with the distance from it in
    slots, nodes and batch.
    """
    axes = max(np.ndim(slots), np.ndim(nodes), np.ndim(local_batch), len(model.shape))
    spread, most, widest, low, high = (
        _trailing(one, axes)
        for one in (model.spread, model.slots_tried, model.nodes_tried, model.batch_low, model.batch_high)
    )
    slots, nodes, batch = (
        np.where((np.asarray(one) >= LEAST) & (np.asarray(one) <= MOST), one, 1.0)
        for one in (slots, nodes, local_batch)
    )
    more = np.log2(np.maximum(slots / np.maximum(most, 1), 1))
    more += np.log2(np.maximum(nodes / np.maximum(widest, 1), 1))
    more += np.log2(np.maximum(np.maximum(batch / high, low / batch), 1))
    first_slots = (slots > np.maximum(most, 1)) & (most <= 2)
    first_nodes = (nodes > 1) & (widest <= 1)
    result: FloatArray = np.sqrt(
        spread**2
        + (GROWTH_PER_DOUBLING * more) ** 2
        + first_slots * FIRST_SLOTS**2
        + first_nodes * FIRST_NODES**2
    )
    return result


def sync_features(slots: NumberArray, nodes: NumberArray) -> tuple[NumberArray, ...]:
    """Return the factors of alpha_r, beta_r, alpha_n, beta_n and beta_p in the time of a synchronisation."""
    doublings = np.log2(np.maximum(slots, 2) / 2)
    inside, across = (slots > 1) & (nodes <= 1), nodes > 1
    on_two = np.where(nodes == 2, np.log2(slots / np.maximum(nodes, 1)), 0.0)
    return inside * 1.0, inside * doublings, across * 1.0, across * doublings, on_two


def _clean_features(slots: NumberArray, nodes: NumberArray) -> tuple[Float32Array, ...]:
    """Return `sync_features` in single precision, NaN where slots and nodes are not a valid shape."""
    true = (nodes >= 1) & (nodes <= slots) & (slots <= MOST)
    features = sync_features(np.where(true, slots, 1), np.where(true, nodes, 1))
    return tuple(np.where(true, one, np.nan).astype(np.float32) for one in features)


def _block_step(
    model: ThroughputModel, axes: int, arrays: list[Float32Array], step: FloatArray, sync: FloatArray
) -> None:
    *features, batch, passes = arrays[:_FEATURES]
    compute = _compute(model, axes, batch)
    for share in arrays[_FEATURES:]:
        compute = compute * share
    names = ("alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")
    wire: Any = sum(
        _single(getattr(model, name), axes) * one for name, one in zip(names, features, strict=True)
    )
    gamma = _single(model.gamma, axes)
    longer = np.maximum(compute, wire)
    # (1 + (shorter / longer) ** gamma) ** (1 / gamma), with base 2, which is several times faster than power.
    share = np.exp2(gamma * np.log2(np.maximum(np.minimum(compute, wire) / longer, np.float32(1e-30))))
    last = longer * np.exp2(np.log2(1 + share) / gamma)
    np.copyto(step, passes * compute + last)
    np.copyto(sync, np.maximum(last - compute, 0))
    impossible = np.isnan(step)
    step[impossible], sync[impossible] = np.inf, 0.0


def _compute(model: ThroughputModel, axes: int, batch: Float32Array) -> Float32Array:
    line = _single(model.alpha_c, axes) + _single(model.beta_c, axes) * batch
    if not model.bend.any():
        return line
    low, high = (np.log2(_single(one, axes)) for one in (model.batch_low, model.batch_high))
    steps = (KNOTS - 1) / np.maximum(high - low, np.float32(1e-3))
    place = np.fmin(np.fmax((np.log2(batch) - low) * steps, 0), np.float32(KNOTS - 1))
    before = np.minimum(place.astype(np.intp), KNOTS - 2)
    first = np.arange(model.alpha_c.size) * KNOTS
    at = before + _trailing(first.reshape(model.shape), axes)
    bend = model.bend.astype(np.float32).ravel()
    left, right = bend.take(at, mode="clip"), bend.take(at + 1, mode="clip")
    # The cast avoids double precision, which is several times slower.
    result: Float32Array = line * np.exp(left + (right - left) * (place - before.astype(np.float32)))
    return result


def _single(values: FloatArray, axes: int) -> Float32Array:
    return _trailing(values, axes).astype(np.float32)


def _trailing(values: NumberArray, axes: int) -> NumberArray:
    """Return the values with the model's axes first, then new axes of length 1."""
    return values.reshape(values.shape + (1,) * (axes - values.ndim))


def _leading(values: NumberArray, axes: int) -> NumberArray:
    """Return the values with new leading axes of length 1."""
    return values.reshape((1,) * (axes - values.ndim) + values.shape)
