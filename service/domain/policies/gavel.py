"""Gavel (Narayanan et al., OSDI'20): max-min of normalised throughput by shares of time, realised in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.arrays import FloatArray, IntArray
from service.domain.policies.linear import max_min_shares
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.queueing import Capacity, ordered_choices, requested_columns
from service.domain.policies.speedup import finite, kept, kind_capacity, usable_goodput, weights


@dataclass(frozen=True, slots=True)
class Gavel:
    """Shares time on the device kinds so that the worst-off job gains the most over an equal share.

    Section 4.1 (max-min fairness over kinds, jobs at the size they asked for): maximise the least of
    slots * throughput(X) / (weight * throughput(equal shares)), X (J, K) being shares of time. Section 5 makes rounds
    of it: a pair (job, kind) has the priority X / share of its life that the job has spent on the kind.
    """

    name: ClassVar[str] = "gavel"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # its order is the choice
        """See `Policy.choose`."""
        columns, throughput = _best_columns(given)
        slots = np.append(given.configurations.slots, 0)[columns]
        shares = time_shares(throughput, slots, kind_capacity(given), weights(given))
        received = finite(given.served_s) / np.maximum(finite(given.age_s), 1.0)[:, None]
        priority = np.where(shares > _NONE, shares / np.maximum(received, _NONE), 0.0)
        job, kind = np.nonzero(priority > 0)
        utility = np.full(given.goodput.shape, -np.inf)
        utility[job, columns[job, kind]] = priority[job, kind]
        return ordered_choices(given, _by_priority(given, utility), utility, "priority")


_NONE = 1e-6
"""A share of time below this is none; whoever has had none yet goes before all who have."""


def _best_columns(given: RoundInput) -> tuple[IntArray, FloatArray]:
    """(J, K) the requested configuration with the most goodput on each kind, the present one first; and its goodput.

    Where there is none the column is `NOTHING` and the goodput 0.
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
    """(J, K) the shares of time that maximise the least normalised throughput.

    `throughput` and `slots` (J, K) are those of each job's configuration on a kind, `capacity` (K,) the slots there
    are, `weight` (J,) the priorities. Normalised is by an equal share: each kind in proportion to its slots, the whole
    at most all the time.
    """
    each = capacity / max(len(throughput), 1)
    at_equal = throughput @ (each / max(float(each.sum()), 1.0))
    base = np.where(at_equal > 0, at_equal, 1.0) * np.maximum(weight, _NONE)
    return max_min_shares(throughput * slots / base[:, None], slots, capacity)


def _by_priority(given: RoundInput, priority: FloatArray) -> IntArray:
    """(J,) the configurations (J, C) of the highest priorities that fit; of equal ones those that jobs hold already."""
    chosen = np.full(len(priority), NOTHING, dtype=np.int64)
    capacity = Capacity(given.rows, *priority.shape)
    jobs, columns = np.nonzero(priority > 0)
    moves = columns != given.current[jobs]
    wanted = np.asarray((priority > 0).any(axis=0))
    for pair in np.lexsort((jobs, moves, -priority[jobs, columns])):
        job, column = jobs[pair], columns[pair]
        if chosen[job] != NOTHING:
            continue
        if capacity.fits(job, columns[pair : pair + 1]).all():
            chosen[job] = column
            capacity.take(job, column)
        elif capacity.exhausted(wanted):
            break
    return chosen
