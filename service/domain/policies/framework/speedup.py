"""Functions that several policies share: cleaned inputs, speedups, and the value of a change after its cost.

A round must have a result whatever was measured. This module therefore cleans each input, in one place and in
one way.
"""

from __future__ import annotations

import numpy as np

from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray, NumberArray

_MOST = 1e15
_LEAST = 1e-9
"""Bounds of plausible measurements; within them, ratios and powers of measurements stay finite."""


def finite(values: NumberArray, *, otherwise: float = 0.0) -> FloatArray:
    """Return `values`, limited to 1e15, with `otherwise` in place of negative, infinite and NaN values."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.minimum(np.where(np.isfinite(numbers) & (numbers >= 0), numbers, otherwise), _MOST)


def clean_goodput(given: RoundInput) -> FloatArray:
    """Return the goodput (J, C), 0 for a configuration that cannot run the job."""
    goodput = finite(given.goodput)
    return np.where(goodput > _LEAST, goodput, 0.0)


def usable_goodput(given: RoundInput) -> FloatArray:
    """Return the goodput (J, C), 0 for a configuration that cannot run the job or that it may not be given."""
    return np.where(given.allowed, clean_goodput(given), 0.0)


def known_length(given: RoundInput) -> BoolArray:
    """Return the mask (J,) of the jobs whose remaining work is known."""
    return np.asarray(np.isfinite(given.remaining) & (given.remaining >= 0))


def length_class(given: RoundInput) -> IntArray:
    """Return the index (J,) of each job's class among the ended jobs."""
    return given.job_class if given.length_class is None else given.length_class


def remaining_s(given: RoundInput, goodput: FloatArray, served_s: NumberArray) -> FloatArray:
    """Return the seconds to go (J,) at these goodputs (J,), infinite for a goodput of 0.

    A job of unknown length counts as being as far from its end as from its start, `served_s` seconds (J,)
    ago. This is fair for sizes that spread over many orders of magnitude; the job with the least service
    counts as shortest.
    """
    rate = np.where(goodput > 0, goodput, 1.0)
    left_s = np.where(known_length(given), finite(given.remaining) / rate, finite(served_s))
    return np.where(goodput > 0, left_s, np.inf)


def weights(given: RoundInput) -> FloatArray:
    """Return the weight (J,) of each job, by priority and its project's usage; 1 for an invalid weight."""
    weight = finite(given.weight, otherwise=1.0)
    return weight if given.share is None else weight * finite(given.share, otherwise=1.0)


def holding(given: RoundInput) -> BoolArray:
    """Return the mask (J,) of the jobs that hold a configuration of this table."""
    return (given.current >= 0) & (given.current < len(given.configurations.slots))


def stop_cost_s(given: RoundInput) -> FloatArray:
    """Return the seconds of training (J,) that the loss of all slots costs each job.

    They are at least those of a change, so that a job without slots is not better off than one with fewer.
    """
    change_s = finite(given.change_s)
    return change_s if given.stop_s is None else np.maximum(finite(given.stop_s), change_s)


def goodput_now(given: RoundInput) -> FloatArray:
    """Return the goodput (J,) of each job at the configuration that it holds; 0 for a job that holds none."""
    rows = np.arange(len(given.current))
    return np.where(holding(given), given.goodput[rows, np.maximum(given.current, 0)], 0.0)


def kept(given: RoundInput) -> BoolArray:
    """Return the mask (J, C) of the configurations that the jobs hold."""
    columns = np.arange(len(given.configurations.slots))
    return np.asarray(holding(given)[:, None] & (columns[None, :] == given.current[:, None]))


def changed(given: RoundInput) -> BoolArray:
    """Return the mask (J, C) of the configurations to which a job that holds slots would have to change."""
    return np.asarray(holding(given)[:, None] & ~kept(given))


def restart_factor(given: RoundInput, life_s: FloatArray, change_s: NumberArray | float) -> FloatArray:
    """Return the fraction (J,) of its life that a job trains if it is changed as often as it has been so far.

    The formula is max(life - changes * cost, 0) / (life + cost) (Pollux, section 5.2; Sia, section 3.4).
    `life_s` (J,) and the cost of a change, `change_s`, are in seconds.
    """
    life_s, cost_s = finite(life_s), finite(np.asarray(change_s))
    trained_s = np.maximum(life_s - finite(given.changes) * cost_s, 0.0)
    return np.where(cost_s > 0, trained_s / np.maximum(life_s + cost_s, 1e-9), 1.0)


def kind_capacity(given: RoundInput) -> FloatArray:
    """Return the slots (K,) of each kind, from the rows; 0 for a missing or invalid row."""
    capacity = np.zeros(len(given.configurations.kinds))
    for kind, row in enumerate(given.rows[: len(capacity)]):
        capacity[kind] = row.capacity
    return finite(capacity)


def best_where(goodput: FloatArray, among: BoolArray) -> FloatArray:
    """Return the largest goodput (J,) of each job among the marked configurations (J, C); 0 without one."""
    return np.asarray(np.where(among, goodput, 0.0).max(axis=1, initial=0.0))


def smallest_size(goodput: FloatArray, slots: IntArray) -> FloatArray:
    """Return the fewest slots (J,) on which each job can run; infinite if it can run on none."""
    return np.asarray(np.where(goodput > 0, slots[None, :].astype(float), np.inf).min(axis=1, initial=np.inf))


def least_goodput(goodput: FloatArray) -> FloatArray:
    """Return the smallest goodput (J,) above 0 of each job; 1 without one, so that division by it is safe."""
    least = np.where(goodput > 0, goodput, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 1.0)


def at_fair_share(given: RoundInput) -> FloatArray:
    """Return the best goodput (J,) on at most a fair share of the slots, else on the smallest size; 1 without one."""
    goodput = clean_goodput(given)
    slots = given.configurations.slots
    fair = np.ceil(kind_capacity(given).sum() / max(len(goodput), 1))
    limit = np.maximum(smallest_size(goodput, slots), max(fair, 1.0))
    best = best_where(goodput, slots[None, :] <= limit[:, None])
    return np.where(best > 0, best, 1.0)
