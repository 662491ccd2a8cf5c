"""Predictions for a device kind on which a job never used several slots, from the kinds on which it did. Pure.

This extends Sia's bootstrap (SOSP'23, section 3.4). There, a profile on one slot of the new kind is enough:
synchronisation is assumed to be faster by the same factor as compute, so the job scales as on the known kind.
That is a poor guess where the kinds differ in their links. Links belong to the cluster and not to the job, so
other jobs measure them. The logarithm of the synchronisation time is modelled as a number for the job plus a
number for the kind, and the numbers of the kinds are learned from all jobs. Until jobs have run on both
kinds, the result is Sia's guess.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from service.domain.perf.throughput import GUESS_SPREAD, Numbers, ThroughputModel, compute_time
from service.domain.shared.arrays import BoolArray, FloatArray

_HIDDEN = 0.1
"""Synchronisation, as a share of compute, at which it counts as half measured.

Compute hides the other half, and hidden synchronisation cannot be fitted.
"""
_PRIOR_JOBS = 0.5
"""Number of jobs that must have measured a difference between the links of kinds before half of it is believed."""
_LOG_ACROSS, _LOG_NO_EXTRA = math.log(1.1), math.log(0.01)
"""Default ratios without measurements, as logarithms.

The first is the time across nodes over the time within a node, the second the extra on two nodes over the
time across nodes.
"""
_SMALLEST = 1e-9
_ROUNDS = 30


def transfer(known: ThroughputModel, own: ThroughputModel, log_ratio: FloatArray) -> ThroughputModel:
    """Return `own` (M,), models of the new kind, with the parameters it has not tried taken from `known` (M,).

    `known` has the models of the same jobs on another kind. It supplies synchronisation across nodes where
    `own` tried one node, and all synchronisation where `own` tried one slot.

    `log_ratio` (3, M) is the logarithm of synchronisation time relative to the known kind: within a node,
    across nodes, and the extra on two nodes. Where `own` tried nothing at all, use `borrow`.
    """
    inside, across, on_two = np.exp(log_ratio)
    one_slot, one_node = own.slots_tried <= 1, own.nodes_tried <= 1
    return replace(
        own,
        alpha_r=np.where(one_slot, known.alpha_r * inside, own.alpha_r),
        beta_r=np.where(one_slot, known.beta_r * inside, own.beta_r),
        alpha_n=np.where(one_node, known.alpha_n * across, own.alpha_n),
        beta_n=np.where(one_node, known.beta_n * across, own.beta_n),
        beta_p=np.where(one_node, known.beta_p * on_two, own.beta_p),
        gamma=np.where(one_slot, known.gamma, own.gamma),
    )


def borrow(known: ThroughputModel, relative_speed: Numbers = 1.0) -> ThroughputModel:
    """Return the models for a kind on which nothing was tried: those of another kind, with a wide interval.

    They are `relative_speed` times as fast (broadcast to M). A relative speed that is NaN or not positive is
    unknown and counts as 1.
    """
    true = (np.asarray(relative_speed) > _SMALLEST) & (np.asarray(relative_speed) < 1 / _SMALLEST)
    speed = np.broadcast_to(np.where(true, relative_speed, 1.0), known.shape)
    none = np.zeros(known.shape)
    return replace(
        known.faster(speed),
        spread=np.maximum(known.spread, GUESS_SPREAD),
        slots_tried=none,
        nodes_tried=none,
    )


def across_kinds(models: ThroughputModel) -> ThroughputModel:
    """Return the models (J, K) of jobs on kinds, with untried parts taken from the job's best-known other kind.

    The best-known kind is one on which the job ran on several nodes, else on several slots, else at all.
    Among these, it is the kind on which the synchronisation is measured best.

    Without such a kind, a job that ran on several slots but only on one node takes the extra cost of
    synchronisation across nodes from the kind's other jobs. In all other cases a job keeps its own model.
    More jobs, running or ended, improve the result.
    """
    jobs, kinds = models.shape
    if jobs == 0 or kinds == 0:
        return models
    compute = _log_compute(models)
    sync = _log_sync(models)
    quality = _quality(sync, compute, models)
    expected = _expected_sync(sync, compute, quality, models.slots_tried > 0)
    several, wide = models.slots_tried > 1, models.nodes_tried > 1
    level = 1.0 * (models.slots_tried > 0) + several + wide
    # Each `quality` is at most 1, so it only breaks ties between levels.
    score = level + 0.9 * np.where(wide, quality[1], quality[0])
    rows = np.arange(jobs)
    columns = []
    for kind in range(kinds):
        own = models[:, kind]
        best = np.where(np.arange(kinds) == kind, -1.0, score).argmax(axis=1)
        better = level[rows, best] > level[:, kind]
        # Without a better kind, other jobs may still show the extra cost of several nodes over one.
        best = np.where(better, best, kind)
        known = models[rows, best]
        bootstrapped = transfer(known, own, expected[:, :, kind] - sync[:, rows, best])
        columns.append(
            bootstrapped.where(own.slots_tried > 0, borrow(known)).where(better | several[:, kind], own)
        )
    names = [one.name for one in fields(ThroughputModel)]
    return ThroughputModel(
        **{name: np.stack([getattr(one, name) for one in columns], axis=1) for name in names}
    )


def additive(values: FloatArray, weights: FloatArray, doubt: float) -> FloatArray:
    """Return the least-squares fit of (J, K) values as a number for the row plus a number for the column.

    `weights` are 0 where there is no value. Each column's number is pulled to 0 as if `doubt` rows had the
    value 0.
    """
    row, column = np.zeros((len(values), 1)), np.zeros((1, values.shape[1]))
    of_row = np.maximum(weights.sum(axis=1, keepdims=True), _SMALLEST)
    of_column = weights.sum(axis=0, keepdims=True) + max(doubt, _SMALLEST)
    for _ in range(_ROUNDS):
        row = (weights * (values - column)).sum(axis=1, keepdims=True) / of_row
        column = (weights * (values - row)).sum(axis=0, keepdims=True) / of_column
    result: FloatArray = row + column
    return result


def _expected_sync(sync: FloatArray, compute: FloatArray, quality: FloatArray, ran: BoolArray) -> FloatArray:
    """Return the expected value of `_log_sync` for each job on each kind (3, J, K)."""
    # Before any measurement of its links, a kind's synchronisation is as much faster as its compute, over all
    # jobs.
    usual = additive(compute, ran.astype(float), 0.0)
    inside, across = (usual + additive(sync[i] - usual, quality[i], _PRIOR_JOBS) for i in (0, 1))
    # A job that never ran on several nodes: its time within a node, plus the extra that the kind's other jobs
    # show.
    within = np.where(quality[0] > 0, sync[0], inside)
    more = _of_kind(sync[1] - sync[0], quality.min(axis=0), _LOG_ACROSS)
    across = np.where(quality[1].any(axis=1, keepdims=True), across, within + more)
    # The extra on two nodes belongs to the kind alone, as a share of the time across nodes. It is close to 0
    # until measured.
    extra = _of_kind(np.maximum(sync[2] - sync[1], _LOG_NO_EXTRA), quality[1], _LOG_NO_EXTRA)
    return np.stack([inside, across, across + extra])


def _of_kind(values: FloatArray, weights: FloatArray, usual: float) -> FloatArray:
    """Return the mean (K,) of (J, K) values, with `usual` counted as the value of `_PRIOR_JOBS` more jobs."""
    result: FloatArray = ((weights * values).sum(axis=0) + _PRIOR_JOBS * usual) / (
        weights.sum(axis=0) + _PRIOR_JOBS
    )
    return result


def _log_compute(models: ThroughputModel) -> FloatArray:
    """Return the logarithm of compute time (J, K) at one batch of each job, in the middle of the batches it tried."""
    ran = models.slots_tried > 0
    middle = 0.5 * np.log(models.batch_low * models.batch_high)
    batch = np.exp((middle * ran).sum(axis=1) / np.maximum(ran.sum(axis=1), 1))
    return np.log(compute_time(models, np.repeat(batch[:, None], models.shape[1], axis=1)))


def _log_sync(models: ThroughputModel) -> FloatArray:
    """Return the logarithm of synchronisation time (3, J, K): within a node and across nodes, each on four
    slots, and the extra on two nodes.
    """
    inside, across = models.alpha_r + models.beta_r, models.alpha_n + models.beta_n
    return np.log(np.maximum(np.stack([inside, across, models.beta_p]), _SMALLEST))


def _quality(sync: FloatArray, compute: FloatArray, models: ThroughputModel) -> FloatArray:
    """Return weights from 0 to 1 (2, J, K) for the quality of measured synchronisation within a node and across nodes.

    They are squared, as weights of a least-squares fit.
    """
    tried = np.stack([models.slots_tried > 1, models.nodes_tried > 1])
    share = np.exp(sync[:2] - compute)
    result: FloatArray = tried * (share / (share + _HIDDEN)) ** 2
    return result
