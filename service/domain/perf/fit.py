"""Fit throughput models to measurements, for all owners at once. Pure.

An owner is anything with a model of its own: a job on a device kind. The fit is a batched Levenberg-Marquardt
over the logarithms of the parameters, so that no parameter becomes negative. It minimises the robust loss f^2
* (sqrt(1 + (r / f)^2) - 1), which a few outliers do not move. A residual is the logarithm of predicted over
measured step time. Where a measurement has the synchronisation time, the same residual of compute counts too,
with less weight.

Every parameter is also pulled weakly towards a prior, so that parameters without data keep its values.
Without a class prior, this is Pollux's prior-driven exploration (OSDI'21, section 4.1):

- With one batch size measured, half of compute depends on the batch.
- Before several slots or several nodes are measured, synchronisation costs next to nothing.
- Synchronisation across nodes costs at least as much as within a node.

The model is therefore optimistic about sizes without measurements, so they are tried.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from service.domain.perf.observations import Observations, believable
from service.domain.perf.throughput import (
    KNOTS,
    ThroughputModel,
    compute_time,
    prior,
    sync_features,
)
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_STEPS_HALF_TRUSTED = 10.0
"""Number of steps at which a mean has half the weight of a mean over very many steps.

Beyond it, the variation between steps matters less than the error of the model.
"""
_ROBUST = 0.05
"""Residual up to which the loss is about quadratic. Beyond it the loss grows linearly."""
_COMPUTE_WEIGHT = 0.2
"""Weight of the residuals of compute.

They separate compute from synchronisation, but the step time is what the model predicts.
"""
_PULL = 0.02
"""Pull of a parameter to a prior of spread 1, as the weight of an observation.

The pull to a prior of spread s is _PULL / s, limited to _WEAKEST and _STRONGEST.
"""
_WEAKEST, _STRONGEST = 0.02, 0.4
_BEND_PULL = 0.3
"""Pull of each knot of the bend to the prior, as the weight of an observation."""
_PRIOR_ERROR, _PRIOR_WEIGHT = 0.08, 2.0
"""Usual error of the model's form, and the number of observations that this belief is worth."""
_LOWEST, _HIGHEST = -30.0, 30.0
_LEAST_REACH = 0.01
"""Largest logarithm of the ratio of two batches that still count as the same batch."""
_POOR_LOSS = 0.001
"""Loss per observation from which a second start is tried: that of residuals of 0.05."""
_ITERATIONS = 40
_TOGETHER = 1024
"""Number of owners fitted together. A larger block is not faster and takes more memory."""

_GAMMA, _BEND = 7, 8
_TIMES = ("alpha_c", "beta_c", "alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")
"""Names of the time parameters. A parameter vector has their logarithms, then gamma = 1 + 9 * sigmoid(.),
then the bend."""
_SIZE = _BEND + KNOTS


class _Data(NamedTuple):
    """Observations of several owners side by side (owners, observations), padded with weight 0."""

    slots: FloatArray
    nodes: FloatArray
    batch: FloatArray
    passes: FloatArray
    step: FloatArray
    compute: FloatArray
    """Seconds of one pass. Where it is unknown, the upper bound, with weight 0."""
    weight: FloatArray
    compute_weight: FloatArray
    reach: FloatArray

    def of(self, rows: IntArray | BoolArray) -> _Data:
        return _Data(*(one[rows] for one in self))


class _Setting(NamedTuple):
    """Constants of a fit (owners, ...)."""

    features: FloatArray
    """Result of `sync_features` (owners, observations, 5)."""
    knots: FloatArray
    """Weight of each knot at the batch of each observation (owners, observations, KNOTS)."""
    centre: FloatArray
    """Parameters of the prior (owners, parameters)."""
    pull: FloatArray

    def of(self, rows: IntArray | BoolArray) -> _Setting:
        return _Setting(*(one[rows] for one in self))


def fit(
    observations: Observations,
    owners: int,
    class_prior: ThroughputModel | None = None,
    reach: FloatArray | None = None,
) -> ThroughputModel:
    """Return the fitted throughput models (owners,).

    `class_prior` (owners,) or (1,) is the model of jobs of the same class. The fit scales its speed to the
    owner's own measurements and keeps its scaling where the owner has none. Without a class prior, the fit
    starts from the optimistic prior. Measurements that cannot be true are ignored. An owner without
    measurements gets its prior. `reach` (O,) multiplies synchronisation across nodes; None: 1.
    """
    if class_prior is None:
        result = prior(compute_s=np.ones(owners), local_batch=np.full(owners, 32.0))
    else:
        result = class_prior[np.broadcast_to(np.arange(class_prior.shape[0]), (owners,))]
    kept = np.flatnonzero(believable(observations, owners))
    kept = kept[np.argsort(observations.owner[kept], kind="stable")]
    number = np.bincount(observations.owner[kept], minlength=owners)
    first = np.cumsum(number) - number
    # Owners with similar counts are fitted together. One owner with thousands would widen the arrays of all.
    width = np.where(number > 0, np.ceil(np.log2(np.maximum(number, 1))), -1)
    for size in np.unique(width[width >= 0]):
        alike = np.flatnonzero(width == size)
        for rows in np.array_split(alike, math.ceil(len(alike) / _TOGETHER)):
            data = _padded(observations, reach, kept, first[rows], number[rows])
            fitted = _fit(data, None if class_prior is None else result[rows])
            result = _put(result, rows, fitted)
    return result


def _padded(
    one: Observations, reach: FloatArray | None, order: IntArray, first: IntArray, number: IntArray
) -> _Data:
    place = np.arange(number.max())
    real = place < number[:, None]
    at = order[np.minimum(first[:, None] + place, len(order) - 1)]
    at = np.where(real, at, at[:, :1])
    slots, step, passes = one.slots[at], one.step_s[at], one.accumulation[at]
    sync = np.where(slots > 1, one.sync_s[at], 0.0)
    known = (sync >= 0) & (sync < step)
    compute = np.where(known, step - np.where(known, sync, 0.0), step) / (1 + passes)
    weight = np.where(real, 1 / (1 + _STEPS_HALF_TRUSTED / one.count[at]), 0.0)
    return _Data(
        slots=slots,
        nodes=one.nodes[at],
        batch=one.local_batch[at],
        passes=passes,
        step=step,
        compute=compute,
        weight=weight,
        compute_weight=np.where(known, weight, 0.0),
        reach=np.ones_like(step) if reach is None else reach[at],
    )


def _fit(data: _Data, class_prior: ThroughputModel | None) -> ThroughputModel:
    low = np.where(data.weight > 0, data.batch, np.inf).min(axis=1)
    high = np.where(data.weight > 0, data.batch, 0.0).max(axis=1)
    mean_batch = np.exp(_mean(np.log(data.batch), data.weight))
    known = np.where(data.compute_weight.any(axis=1, keepdims=True), data.compute_weight, data.weight)
    if class_prior is None:
        mean_s = np.exp(_mean(np.log(data.compute), known))
        before = prior(compute_s=mean_s, local_batch=mean_batch)
    else:
        believed = np.log(compute_time(class_prior, data.batch))
        before = class_prior.faster(np.exp(_mean(believed - np.log(data.compute), known)))
    at_knots = np.exp(np.linspace(np.log(low), np.log(high), KNOTS, axis=1))
    line = before.alpha_c[:, None] + before.beta_c[:, None] * at_knots
    bend = np.log(compute_time(before, at_knots) / line)
    pull = np.clip(_PULL / before.spread, _WEAKEST, _STRONGEST)[:, None]
    features = np.stack(sync_features(data.slots, data.nodes), axis=-1).astype(float)
    features[..., 2:] *= data.reach[..., None]
    setting = _Setting(
        features=features,
        knots=_knots(data.batch, low, high),
        centre=_parameters(before, bend),
        pull=np.concatenate([np.repeat(pull, _BEND, axis=1), np.full(bend.shape, _BEND_PULL)], axis=1),
    )
    found, determined, loss = _levenberg_marquardt(
        data, setting, _start(data, setting, before, np.ones(len(low)))
    )
    # Where compute starts at the mean step time, a slow network cannot be found: start again at the fastest.
    poor = np.flatnonzero(loss > _POOR_LOSS * data.weight.sum(axis=1))
    if len(poor):
        few, its = data.of(poor), setting.of(poor)
        compute_s = np.where(few.weight > 0, few.compute, np.inf)
        faster = (compute_time(before[poor], few.batch) / compute_s).max(axis=1)
        again, more, lower = _levenberg_marquardt(few, its, _start(few, its, before[poor], faster))
        better = lower < loss[poor]
        found[poor[better]], determined[poor[better]] = again[better], more[better]
    return _model(found, determined, data, setting, replace(before, batch_low=low, batch_high=high))


def _start(data: _Data, setting: _Setting, before: ThroughputModel, faster: FloatArray) -> FloatArray:
    """Return the parameters to start from, with compute `faster` (owners,) times as fast as in `before`.

    The loss hardly depends on a share that is close to 0. So synchronisation starts from the measured step
    time minus compute, not from the prior.
    """
    start = setting.centre.copy()
    start[:, :2] -= np.log(faster)[:, None]
    compute = compute_time(before, data.batch) / faster[:, None]
    left = np.log(np.maximum(data.step - (1 + data.passes) * compute, compute / 5))
    for first, feature, number in ((2, 0, 2), (4, 2, 3)):  # Within a node, then across nodes.
        weight = data.weight * setting.features[..., feature]
        measured = weight.any(axis=1)
        level = (left * weight).sum(axis=1) / np.where(measured, weight.sum(axis=1), 1.0)
        tried = (setting.features[..., feature : feature + number] * data.weight[..., None]).any(axis=1)
        times = slice(first, first + number)
        start[:, times] = np.where(tried, np.maximum(start[:, times], level[:, None]), start[:, times])
    return start


def _mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    result: FloatArray = (values * weight).sum(axis=1) / weight.sum(axis=1)
    return result


def _knots(batch: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the weights of the knots in a linear interpolation, all 0 where there is only one batch size."""
    reach = np.log(high / low)[:, None]
    place = np.clip(np.log(batch / low[:, None]) / np.maximum(reach, 1e-9) * (KNOTS - 1), 0, KNOTS - 1)
    weights = np.maximum(0.0, 1 - np.abs(place[..., None] - np.arange(KNOTS)))
    result: FloatArray = weights * (reach > _LEAST_REACH)[..., None]
    return result


def _parameters(model: ThroughputModel, bend: FloatArray) -> FloatArray:
    times = np.stack([np.log(np.maximum(getattr(model, name), 1e-12)) for name in _TIMES], axis=1)
    share = np.clip((model.gamma - 1) / 9, 1e-3, 1 - 1e-3)
    return np.concatenate([times, np.log(share / (1 - share))[:, None], bend], axis=1)


def _levenberg_marquardt(
    data: _Data, setting: _Setting, start: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the parameters of least loss (owners, parameters), how many of them the data determine (owners,),
    and the loss (owners,).

    Owners are independent: each has its own damping and stops when its loss no longer decreases.
    """
    found = start
    active = np.arange(len(start))
    damping = np.full(len(start), 1e-2)
    loss, gradient, normal = _loss(data, setting, found)
    for _ in range(_ITERATIONS):
        now, settings = data.of(active), setting.of(active)
        ridge = np.eye(_SIZE) * settings.pull[:, None, :] ** 2
        matrix = normal[active] + ridge
        matrix += matrix * np.eye(_SIZE) * damping[active, None, None]
        step = -np.linalg.solve(matrix, gradient[active][..., None])[..., 0]
        tried = np.clip(found[active] + np.clip(step, -2, 2), _LOWEST, _HIGHEST)
        new_loss, new_gradient, new_normal = _loss(now, settings, tried)
        better = new_loss < loss[active]
        settled = (loss[active] - new_loss <= 1e-5 * loss[active]) & (better | (damping[active] > 1e3))
        taken = active[better]
        found[taken], loss[taken] = tried[better], new_loss[better]
        normal[taken], gradient[taken] = new_normal[better], new_gradient[better]
        damping[active] = np.where(better, damping[active] / 5, damping[active] * 8)
        active = active[~settled]
        if not len(active):
            break
    inverse = np.linalg.inv(normal + np.eye(_SIZE) * setting.pull[:, None, :] ** 2)
    return found, np.einsum("kij,kji->k", inverse, normal), loss


def _loss(
    data: _Data, setting: _Setting, parameters: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the loss (owners,), its gradient (owners, parameters) and the normal matrix (owners, parameters,
    parameters).
    """
    step, step_slopes, compute, compute_slopes = _predict(data, setting, parameters)
    residuals = np.concatenate(
        [step - np.log(data.step), _COMPUTE_WEIGHT * (compute - np.log(data.compute))], axis=1
    )
    slopes = np.concatenate([step_slopes, _COMPUTE_WEIGHT * compute_slopes], axis=1)
    weight = np.concatenate([data.weight, data.compute_weight], axis=1)
    stretch = np.sqrt(1 + (residuals / _ROBUST) ** 2)
    weighted = slopes * (weight / stretch)[..., None]
    away = parameters - setting.centre
    loss = (weight * _ROBUST**2 * (stretch - 1)).sum(axis=1) + 0.5 * ((setting.pull * away) ** 2).sum(axis=1)
    gradient = np.einsum("kop,ko->kp", weighted, residuals) + setting.pull**2 * away
    return loss, gradient, np.swapaxes(weighted, 1, 2) @ slopes


def _predict(
    data: _Data, setting: _Setting, parameters: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the logarithms of step and compute time (owners, observations), each with its derivatives (...,
    parameters).
    """
    times = np.exp(parameters[:, None, :_GAMMA])
    share = 1 / (1 + np.exp(-parameters[:, None, _GAMMA]))
    gamma = 1 + 9 * share
    line = times[..., 0] + times[..., 1] * data.batch
    compute = line * np.exp(np.einsum("kon,kn->ko", setting.knots, parameters[:, _BEND:]))
    wires = times[..., 2:] * setting.features
    sync = wires.sum(axis=-1)
    longer = np.maximum(compute, sync)
    ratio = (np.minimum(compute, sync) / longer) ** gamma
    last = longer * (1 + ratio) ** (1 / gamma)
    step = data.passes * compute + last
    of_sync = np.where(sync > compute, 1, ratio) / (1 + ratio)
    mixing = -(_x_log_x(of_sync) + _x_log_x(1 - of_sync)) / gamma**2

    compute_slopes = np.zeros((*step.shape, _SIZE))
    compute_slopes[..., 0] = times[..., 0] / line
    compute_slopes[..., 1] = times[..., 1] * data.batch / line
    compute_slopes[..., _BEND:] = setting.knots
    slopes = compute_slopes * ((data.passes * compute + last * (1 - of_sync)) / step)[..., None]
    slopes[..., 2:_GAMMA] = wires * (last * of_sync / step / np.maximum(sync, 1e-300))[..., None]
    slopes[..., _GAMMA] = -mixing * 9 * share * (1 - share) * last / step
    return np.log(step), slopes, np.log(compute), compute_slopes


def _x_log_x(values: FloatArray) -> FloatArray:
    result: FloatArray = values * np.log(np.maximum(values, 1e-300))
    return result


def _model(
    found: FloatArray, determined: FloatArray, data: _Data, setting: _Setting, before: ThroughputModel
) -> ThroughputModel:
    """Return the models of fitted parameters. `before`, the prior, supplies the range of batches."""
    times = {name: np.exp(found[:, index]) for index, name in enumerate(_TIMES)}
    real = data.weight > 0
    slots_tried = np.maximum(np.where(real, data.slots, 0.0).max(axis=1), before.slots_tried)
    nodes_tried = np.maximum(np.where(real, data.nodes, 0.0).max(axis=1), before.nodes_tried)
    # Without measurements across nodes, synchronisation across nodes takes at least as long as within a node.
    for across, within in (("alpha_n", "alpha_r"), ("beta_n", "beta_r")):
        least = np.where(nodes_tried <= 1, 1.1 * times[within], 0.0)
        times[across] = np.maximum(times[across], least)
    step, *_ = _predict(data, setting, found)
    number = real.sum(axis=1)
    # 1.25 times the mean deviation estimates the standard deviation of a normal distribution, and resists
    # outliers.
    error = 1.25 * _mean(np.abs(step - np.log(data.step)), data.weight)
    squares = number * error**2 + _PRIOR_WEIGHT * _PRIOR_ERROR**2
    variance = squares / (np.maximum(number - determined, 0.0) + _PRIOR_WEIGHT)
    return replace(
        before,
        **times,
        gamma=1 + 9 / (1 + np.exp(-found[:, _GAMMA])),
        bend=found[:, _BEND:],
        # The spread of a prediction includes the uncertainty of the parameters.
        spread=np.sqrt(variance * (1 + determined / number)),
        slots_tried=slots_tried,
        nodes_tried=nodes_tried,
    )


def _put(into: ThroughputModel, rows: IntArray, some: ThroughputModel) -> ThroughputModel:
    """Return `into` with its `rows` replaced by `some`."""
    at = np.zeros(into.shape[0], np.int64)
    at[rows] = np.arange(len(rows))
    mask = np.zeros(into.shape[0], bool)
    mask[rows] = True
    return some[at].where(mask, into)
