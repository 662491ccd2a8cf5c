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
        columns = _best_columns(given)
        shares = time_shares(given, columns)
        age_s = np.maximum(finite(given.age_s), 1.0)[:, None]
        received = finite(given.served_s) / age_s
        priority = np.where(shares > _NO_SHARE, shares / np.maximum(received, _NEVER), -np.inf)
        chosen = _by_priority(given, columns, priority)
        utility = np.full(given.goodput.shape, -np.inf)
        job, kind = np.nonzero((columns != NOTHING) & (priority > 0))
        utility[job, columns[job, kind]] = priority[job, kind]
        return ordered_choices(given, chosen, utility, "priority")


_NO_SHARE = 1e-6
_NEVER = 1e-6
"""The share of its life of a job that has never been on a kind: it goes before all who have."""


def _best_columns(given: RoundInput) -> IntArray:
    """(J, K) the requested configuration with the most goodput on each kind, the present one first; or `NOTHING`."""
    kind = given.configurations.kind
    goodput = np.where(requested_columns(given), usable_goodput(given), 0.0)
    wish = np.where(kept(given) & (goodput > 0), np.inf, goodput)
    columns = np.full((len(wish), len(given.configurations.kinds)), NOTHING, dtype=np.int64)
    for index in range(columns.shape[1]):
        members = np.flatnonzero(kind == index)
        if len(members):
            best = members[wish[:, members].argmax(axis=1)]
            columns[:, index] = np.where(wish[np.arange(len(wish)), best] > 0, best, NOTHING)
    return columns


def time_shares(given: RoundInput, columns: IntArray) -> FloatArray:
    """(J, K) the share of time of each job on each kind, from the columns (J, K) that it may have there."""
    has = columns != NOTHING
    rows = np.arange(len(columns))[:, None]
    throughput = np.where(has, given.goodput[rows, columns], 0.0) if columns.size else np.zeros(columns.shape)
    slots = np.where(has, given.configurations.slots[columns], 0) if columns.size else np.zeros(columns.shape)
    capacity = kind_capacity(given)
    equal = np.minimum(capacity / max(len(columns), 1) / max(capacity.sum() / max(len(columns), 1), 1.0), 1.0)
    at_equal = throughput @ equal
    weight = np.maximum(weights(given), _NO_SHARE)
    base = np.where(at_equal > 0, at_equal, 1.0) * weight
    return max_min_shares(throughput * slots / base[:, None], slots, capacity)


def _by_priority(given: RoundInput, columns: IntArray, priority: FloatArray) -> IntArray:
    """(J,) the pairs (job, kind) of the highest priorities that fit; equal ones by share of goodput and submit."""
    chosen = np.full(len(columns), NOTHING, dtype=np.int64)
    if not columns.size:
        return chosen
    capacity = Capacity(given.rows, *given.goodput.shape)
    jobs, kinds = np.nonzero((columns != NOTHING) & (priority > 0))
    picked = columns[jobs, kinds]
    stays = picked == given.current[jobs]
    wanted = np.zeros(given.goodput.shape[1], dtype=np.bool_)
    wanted[picked] = True
    for pair in np.lexsort((jobs, ~stays, -priority[jobs, kinds])):
        job, column = jobs[pair], picked[pair]
        if chosen[job] != NOTHING:
            continue
        if capacity.fits(job, np.array([column]))[0]:
            chosen[job] = column
            capacity.take(job, column)
        elif capacity.exhausted(wanted):
            break
    return chosen
