"""What a job will do on a device kind where it never ran on several slots, from the kinds where it did. Pure.

Sia's bootstrap (SOSP'23, section 3.4): a profile on one slot of the new kind is enough, and synchronisation is taken to be
faster by the same factor as compute, so that the job scales as on the known kind. That is a poor guess where the kinds
differ in their links. Links are the cluster's and not the job's, so other jobs show them: the logarithm of the time of
a synchronisation is taken to be one number for the job plus one for the kind, and those of the kinds are learned from all
jobs. Until jobs have run on both kinds that is Sia's guess.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from service.domain.arrays import BoolArray, FloatArray
from service.domain.perf.throughput import GUESS_SPREAD, Numbers, ThroughputModel, compute_time

_HIDDEN = 0.1
"""Synchronisation that takes this share of compute is half seen, and half hidden behind it; what is hidden cannot be
fitted."""
_DOUBT = 0.5
"""Jobs that must show it until half of what makes a kind's links different is believed."""
_LOG_HOPE, _LOG_NO_EXTRA = math.log(1.1), math.log(0.01)
"""Across nodes against within one, and the extra on two nodes against across nodes, where nothing shows it."""
_SMALLEST = 1e-9
_ROUNDS = 30


def transfer(
    known: ThroughputModel, own: ThroughputModel, log_ratio: FloatArray | None = None
) -> ThroughputModel:
    """`own` (M,), models of the new kind, with what they have not tried taken from `known` (M,), of the same jobs on
    another: across nodes where `own` has one node, all synchronisation where it has one slot.

    `log_ratio` (3, M) is how much longer synchronisation takes than on the known kind: within a node, across nodes, and
    the extra on two nodes. None: as compute (Sia). Where `own` tried nothing at all, use `borrow`.
    """
    if log_ratio is None:
        batch = np.sqrt(own.batch_low * own.batch_high)
        compute = np.log(compute_time(own, batch) / compute_time(known, batch))
        log_ratio = np.stack([compute, compute, compute])
    inside, across, on_two = np.exp(log_ratio)
    one_slot, one_node = own.slots_tried <= 1, own.nodes_tried <= 1
    alpha_r = np.where(one_slot, known.alpha_r * inside, own.alpha_r)
    beta_r = np.where(one_slot, known.beta_r * inside, own.beta_r)
    return replace(
        own,
        alpha_r=alpha_r,
        beta_r=beta_r,
        alpha_n=np.where(one_node, known.alpha_n * across, own.alpha_n),
        beta_n=np.where(one_node, known.beta_n * across, own.beta_n),
        beta_p=np.where(one_node, known.beta_p * on_two, own.beta_p),
        gamma=np.where(one_slot, known.gamma, own.gamma),
    )


def borrow(known: ThroughputModel, relative_speed: Numbers = 1.0) -> ThroughputModel:
    """Models for a kind where nothing was tried, not even on one slot: those of another kind, `relative_speed` times as
    fast (broadcast to M; 1 where it is not known, which is not a number or not positive). The interval is wide.
    """
    none = np.zeros(known.shape)
    return replace(
        known.faster(_speeds(relative_speed, known.shape)),
        spread=np.maximum(known.spread, GUESS_SPREAD),
        slots_tried=none,
        nodes_tried=none,
    )


def across_kinds(models: ThroughputModel, relative_speed: FloatArray | None = None) -> ThroughputModel:
    """Models (J, K) of jobs on kinds, with what a job has not tried on a kind taken from its best known other kind: where
    it ran on several nodes, else on several slots, else at all; among those, where its synchronisation is seen best.

    Without such a kind, a job that ran on several slots but on one node takes from the kind's other jobs how much more
    synchronisation costs across nodes. Otherwise it keeps what it has. The more jobs, running or ended, the better.

    `relative_speed` (K,) compares kinds before any profile; None: all alike.
    """
    jobs, kinds = models.shape
    if jobs == 0 or kinds == 0:
        return models
    speed = _speeds(1.0 if relative_speed is None else relative_speed, (kinds,))
    compute = _log_compute(models)
    shown = _log_sync(models)
    seen = _seen(shown, compute, models)
    expected = _expected_sync(shown, compute, seen, models.slots_tried > 0)
    several, wide = models.slots_tried > 1, models.nodes_tried > 1
    # Each `seen` is less than one: it only decides among those that stand equal.
    standing = 1.0 * (models.slots_tried > 0) + several + wide
    score = standing + 0.9 * np.where(wide, seen[1], seen[0])
    rows = np.arange(jobs)
    columns = []
    for kind in range(kinds):
        own = models[:, kind]
        best = np.where(np.arange(kinds) == kind, -1.0, score).argmax(axis=1)
        better = standing[rows, best] > standing[:, kind]
        # Without a better kind, other jobs may still show what several nodes cost more than one.
        best = np.where(better, best, kind)
        known = models[rows, best]
        bootstrapped = transfer(known, own, expected[:, :, kind] - shown[:, rows, best])
        guessed = borrow(known, speed[kind] / speed[best])
        columns.append(bootstrapped.where(own.slots_tried > 0, guessed).where(better | several[:, kind], own))
    names = [one.name for one in fields(ThroughputModel)]
    return ThroughputModel(
        **{name: np.stack([getattr(one, name) for one in columns], axis=1) for name in names}
    )


def _speeds(values: Numbers, shape: tuple[int, ...]) -> FloatArray:
    """1 where it is no speed."""
    true = (np.asarray(values) > _SMALLEST) & (np.asarray(values) < 1 / _SMALLEST)
    return np.broadcast_to(np.where(true, values, 1.0), shape)


def additive(values: FloatArray, weights: FloatArray, doubt: float) -> FloatArray:
    """Least squares of (J, K) values, of weight 0 where there is none, as a number for the row plus one for the column;
    each column's is pulled to 0 as if `doubt` rows had shown 0.
    """
    row, column = np.zeros((len(values), 1)), np.zeros((1, values.shape[1]))
    of_row = np.maximum(weights.sum(axis=1, keepdims=True), _SMALLEST)
    of_column = weights.sum(axis=0, keepdims=True) + max(doubt, _SMALLEST)
    for _ in range(_ROUNDS):
        row = (weights * (values - column)).sum(axis=1, keepdims=True) / of_row
        column = (weights * (values - row)).sum(axis=0, keepdims=True) / of_column
    result: FloatArray = row + column
    return result


def _expected_sync(shown: FloatArray, compute: FloatArray, seen: FloatArray, ran: BoolArray) -> FloatArray:
    """What `_log_sync` is expected to be for each job on each kind (3, J, K)."""
    # Before anything is seen of its links, a kind's are as much faster than another's as its compute is, of all jobs.
    usual = additive(compute, ran.astype(float), 0.0)
    inside, across = (usual + additive(shown[i] - usual, seen[i], _DOUBT) for i in (0, 1))
    # A job that never ran on several nodes: within a node, and what the kind's other jobs take more across nodes.
    within = np.where(seen[0] > 0, shown[0], inside)
    more = _of_kind(shown[1] - shown[0], seen.min(axis=0), _LOG_HOPE)
    across = np.where(seen[1].any(axis=1, keepdims=True), across, within + more)
    # The extra on two nodes is the kind's alone, as a share of the time across nodes: next to nothing unless it is seen.
    extra = _of_kind(np.maximum(shown[2] - shown[1], _LOG_NO_EXTRA), seen[1], _LOG_NO_EXTRA)
    return np.stack([inside, across, across + extra])


def _of_kind(values: FloatArray, weights: FloatArray, usual: float) -> FloatArray:
    """Mean (K,) of (J, K) values, with `usual` as if `_DOUBT` jobs more had shown it."""
    result: FloatArray = ((weights * values).sum(axis=0) + _DOUBT * usual) / (weights.sum(axis=0) + _DOUBT)
    return result


def _log_compute(models: ThroughputModel) -> FloatArray:
    """(J, K) at one batch of each job, in the middle of what it tried."""
    ran = models.slots_tried > 0
    middle = 0.5 * np.log(models.batch_low * models.batch_high)
    batch = np.exp((middle * ran).sum(axis=1) / np.maximum(ran.sum(axis=1), 1))
    return np.log(compute_time(models, np.repeat(batch[:, None], models.shape[1], axis=1)))


def _log_sync(models: ThroughputModel) -> FloatArray:
    """(3, J, K) within a node, across nodes, each on four slots, and the extra on two nodes."""
    inside, across = models.alpha_r + models.beta_r, models.alpha_n + models.beta_n
    return np.log(np.maximum(np.stack([inside, across, models.beta_p]), _SMALLEST))


def _seen(sync: FloatArray, compute: FloatArray, models: ThroughputModel) -> FloatArray:
    """(2, J, K) how well synchronisation was seen within a node and across nodes, from 0 to 1, as weights: so squared."""
    tried = np.stack([models.slots_tried > 1, models.nodes_tried > 1])
    share = np.exp(sync[:2] - compute)
    result: FloatArray = tried * (share / (share + _HIDDEN)) ** 2
    return result
