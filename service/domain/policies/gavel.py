"""Gavel policy (Narayanan et al., OSDI'20): max-min normalised throughput by shares of time, realised in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.cluster.contention_rules import Rhythm
from service.domain.policies.framework.linear import max_min_shares
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import Capacity, ordered_choices, requested_columns
from service.domain.policies.framework.speedup import finite, kept, kind_capacity, usable_goodput, weights
from service.domain.shared.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Gavel:
    """Shares of time on the device kinds that give the worst-off job the greatest gain over an equal share.

    Section 4.1 (max-min fairness over kinds, jobs at the requested size): maximise the least of slots *
    throughput(X) / (weight * throughput(equal shares)), X (J, K) being shares of time. Section 5 realises the
    shares in rounds: a pair (job, kind) has the priority X / fraction of its life that the job has spent on
    the kind. Rounds are 360 s apart; here a started job holds its slots for that long, and slots that become free
    are given at once.
    """

    name: ClassVar[str] = "gavel"
    rhythm: ClassVar[Rhythm] = Rhythm(round_s=360.0, lease_s=360.0)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """Return the choices in descending order of the priority of (job, kind) pairs."""
        columns, throughput = _best_columns(given)
        slots = np.append(given.configurations.slots, 0)[columns]
        shares = time_shares(throughput, slots, kind_capacity(given), weights(given))
        received = finite(given.served_s) / np.maximum(finite(given.age_s), 1.0)[:, None]
        priority = np.where(shares > _NONE, shares / np.maximum(received, _NONE), 0.0)
        job, kind = np.nonzero(priority > 0)
        utility = np.full(given.goodput.shape, -np.inf)
        utility[job, columns[job, kind]] = priority[job, kind]
        if given.firm is not None:
            stays = np.flatnonzero(given.firm & (usable_goodput(given) * kept(given)).any(axis=1))
            utility[stays, given.current[stays]] = np.maximum(utility[stays, given.current[stays]], _NONE)
        return ordered_choices(given, _by_priority(given, utility), utility, "priority")


_NONE = 1e-6
"""Smallest share of time that counts; a job that has had no share yet precedes all others."""


def _best_columns(given: RoundInput) -> tuple[IntArray, FloatArray]:
    """Return the requested configuration (J, K) with the most goodput on each kind, and its goodput.

    The present configuration wins if it is among them. Without a configuration the column is `NOTHING` and
    the goodput 0.
    """
    goodput = np.where(requested_columns(given), usable_goodput(given), 0.0)
    wish = np.where(kept(given) & (goodput > 0), np.inf, goodput)
    jobs = np.arange(len(goodput))
    columns = np.full((len(goodput), len(given.configurations.kinds)), NOTHING, dtype=np.int64)
    throughput = np.zeros(columns.shape)
    for kind in range(columns.shape[1]):
        members = np.flatnonzero(given.configurations.kind == kind)
        if len(members):
            best = members[wish[:, members].argmax(axis=1)]
            throughput[:, kind] = goodput[jobs, best]
            columns[:, kind] = np.where(throughput[:, kind] > 0, best, NOTHING)
    return columns, throughput


def time_shares(
    throughput: FloatArray, slots: IntArray, capacity: FloatArray, weight: FloatArray
) -> FloatArray:
    """Return the shares of time (J, K) that maximise the least normalised throughput.

    `throughput` and `slots` (J, K) belong to each job's configuration on a kind. `capacity` (K,) is the
    number of slots and `weight` (J,) the priority of jobs. Throughput is normalised by an equal share of each
    kind in proportion to its slots, in total at most all of the time.
    """
    each = capacity / max(len(throughput), 1)
    at_equal = throughput @ (each / max(float(each.sum()), 1.0))
    base = np.where(at_equal > 0, at_equal, 1.0) * np.maximum(weight, _NONE)
    return max_min_shares(throughput * slots / base[:, None], slots, capacity)


def _by_priority(given: RoundInput, priority: FloatArray) -> IntArray:
    """Return the configurations (J,) of the highest priorities (J, C) that fit; ties go to those that jobs
    already hold.
    """
    chosen = np.full(len(priority), NOTHING, dtype=np.int64)
    capacity = Capacity(given.rows, *priority.shape)
    jobs, columns = np.nonzero(priority > 0)
    moves = columns != given.current[jobs]
    stays = np.zeros(len(jobs), dtype=np.bool_) if given.firm is None else given.firm[jobs] & ~moves
    turn = np.zeros(len(jobs), dtype=np.bool_) if given.seats is None else given.seats[jobs] != NOTHING
    following = np.zeros_like(jobs) if given.next_turn is None else given.next_turn[jobs]
    wanted = np.asarray((priority > 0).any(axis=0))
    for pair in np.lexsort((jobs, moves, -priority[jobs, columns], ~turn, -following, ~stays)):
        job, column = jobs[pair], columns[pair]
        if chosen[job] != NOTHING:
            continue
        if capacity.fits(job, columns[pair : pair + 1]).all():
            chosen[job] = column
            capacity.take(job, column)
        elif capacity.exhausted(wanted):
            break
    return chosen
