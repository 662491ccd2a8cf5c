"""What the policies have in common: clean inputs, speedups, and what a change is worth after its cost.

A round must have an answer whatever was measured, so each input is cleaned here in one place, in one way.
"""

from __future__ import annotations

import numpy as np

from service.domain.arrays import BoolArray, FloatArray, IntArray, NumberArray
from service.domain.policies.policy import RoundInput

_MOST = 1e15
_LEAST = 1e-9
"""No true measurement is outside of these; within them, ratios and powers of measurements stay finite."""


def finite(values: NumberArray, *, otherwise: float = 0.0) -> FloatArray:
    """`values`, at most 1e15, with `otherwise` in place of what is negative, infinite or not a number."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.minimum(np.where(np.isfinite(numbers) & (numbers >= 0), numbers, otherwise), _MOST)


def clean_goodput(given: RoundInput) -> FloatArray:
    """(J, C) goodput, 0 where a job cannot run."""
    goodput = finite(given.goodput)
    return np.where(goodput > _LEAST, goodput, 0.0)


def usable_goodput(given: RoundInput) -> FloatArray:
    """(J, C) goodput, 0 where a job cannot run or may not be given the configuration."""
    return np.where(given.allowed, clean_goodput(given), 0.0)


def known_length(given: RoundInput) -> BoolArray:
    """(J,) whether it is known how much a job has left."""
    return np.asarray(np.isfinite(given.remaining) & (given.remaining >= 0))


def remaining_s(given: RoundInput, goodput: FloatArray, served_s: NumberArray) -> FloatArray:
    """(J,) seconds to go at these goodputs (J,), infinite where they are 0.

    A job of unknown length is taken to be as far from its end as from its start, `served_s` seconds (J,) ago: fair
    for sizes that are spread over many orders of magnitude, and the one with the least service counts as shortest.
    """
    rate = np.where(goodput > 0, goodput, 1.0)
    left_s = np.where(known_length(given), finite(given.remaining) / rate, finite(served_s))
    return np.where(goodput > 0, left_s, np.inf)


def weights(given: RoundInput) -> FloatArray:
    """(J,) how much each job counts, by priority and by what its project has used; 1 where the weight is no number."""
    weight = finite(given.weight, otherwise=1.0)
    return weight if given.share is None else weight * finite(given.share, otherwise=1.0)


def holding(given: RoundInput) -> BoolArray:
    """(J,) whether the job holds a configuration of this table."""
    return (given.current >= 0) & (given.current < len(given.configurations.slots))


def kept(given: RoundInput) -> BoolArray:
    """(J, C) true where the configuration is the one that the job holds."""
    columns = np.arange(len(given.configurations.slots))
    return np.asarray(holding(given)[:, None] & (columns[None, :] == given.current[:, None]))


def changed(given: RoundInput) -> BoolArray:
    """(J, C) true where a job that holds something would have to change for the configuration."""
    return np.asarray(holding(given)[:, None] & ~kept(given))


def restart_factor(given: RoundInput, life_s: FloatArray, change_s: NumberArray | float) -> FloatArray:
    """(J,) the share of its life that a job trains if it goes on being changed as often as up to now.

    max(life - changes * cost, 0) / (life + cost): Pollux, section 5.2; Sia, section 3.4. `life_s` (J,) and the cost of
    a change, `change_s`, in seconds.
    """
    life_s, cost_s = finite(life_s), finite(np.asarray(change_s))
    trained_s = np.maximum(life_s - finite(given.changes) * cost_s, 0.0)
    return np.where(cost_s > 0, trained_s / np.maximum(life_s + cost_s, 1e-9), 1.0)


def kind_capacity(given: RoundInput) -> FloatArray:
    """(K,) slots of each kind, from the rows; 0 where a row is missing or no number."""
    capacity = np.zeros(len(given.configurations.kinds))
    for kind, row in enumerate(given.rows[: len(capacity)]):
        capacity[kind] = row.capacity
    return finite(capacity)


def best_where(goodput: FloatArray, among: BoolArray) -> FloatArray:
    """(J,) the largest goodput of each job among the marked configurations (J, C); 0 where there is none."""
    return np.asarray(np.where(among, goodput, 0.0).max(axis=1, initial=0.0))


def smallest_size(goodput: FloatArray, slots: IntArray) -> FloatArray:
    """(J,) the fewest slots on which each job can run at all; infinite where there are none."""
    return np.asarray(np.where(goodput > 0, slots[None, :].astype(float), np.inf).min(axis=1, initial=np.inf))


def least_goodput(goodput: FloatArray) -> FloatArray:
    """(J,) the smallest goodput above 0 of each job; 1 where it has none, so that one may divide by it."""
    least = np.where(goodput > 0, goodput, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 1.0)


def at_fair_share(given: RoundInput) -> FloatArray:
    """(J,) the best goodput on a fair share of the slots, or on the smallest size above it; 1 where there is none."""
    goodput = clean_goodput(given)
    slots = given.configurations.slots
    fair = np.ceil(kind_capacity(given).sum() / max(len(goodput), 1))
    limit = np.maximum(smallest_size(goodput, slots), max(fair, 1.0))
    best = best_where(goodput, slots[None, :] <= limit[:, None])
    return np.where(best > 0, best, 1.0)
