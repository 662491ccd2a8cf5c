"""Planning of a window of rounds as a market (Shockwave: Zheng et al., NSDI'23), by counts of rounds.

The published program decides which jobs run in each round of the window. Rounds are interchangeable within
the window, so the number of rounds of each job decides the objective. Marginal utilities fall with every
round, so taking the greatest per slot first solves the relaxation of that program by counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_BREAKPOINTS: Final = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
_LOGARITHMS: Final = np.log(np.maximum(_BREAKPOINTS, 1e-6))
"""Published approximation of the logarithm: linear between these points, with 1e-6 for 0."""
_CANDIDATES: Final = 64
"""Maximum number of values of the longest remaining time that one pass of the search tries."""
_MOST_RHO: Final = 1e3
"""Bound on estimates of finish-time fairness, so that their powers stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketRules:
    """Parameters of the plan, as `shockwave.Shockwave` describes them."""

    rounds: int
    round_s: float
    makespan_weight: float
    unfairness_power: float
    max_rho: float

    @property
    def window_s(self) -> float:
        """Length of the window in seconds."""
        return self.rounds * self.round_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Buyers:
    """The jobs (J,) that share `capacity` slots for a window.

    `slots` is the size of a job, `age_s` the time since its submission, `elapsed_s` its run time so far and
    `remaining_s` the rest at that size. `target_s` is the time from its submission to its fair finish.
    """

    capacity: float
    slots: FloatArray
    age_s: FloatArray
    elapsed_s: FloatArray
    remaining_s: FloatArray
    target_s: FloatArray
    weight: FloatArray

    @property
    def share(self) -> float:
        """Part of the time in which a job runs if all jobs share the slots equally: min(1, slots / jobs), at least one slot."""
        return min(1.0, max(self.capacity, 1.0) / max(len(self.slots), 1))

    @property
    def fits(self) -> BoolArray:
        """Mask (J,) of the jobs that can run at all."""
        return np.isfinite(self.remaining_s) & (self.slots <= self.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPlan:
    """Rounds of the window (J,) that each job gets, and its priority (J,) among the jobs that have some.

    `fair` is False if the slots do not suffice to keep every job within its target. Then `priority` is the
    estimated unfairness, otherwise the number of rounds.
    """

    rounds: IntArray
    priority: FloatArray
    fair: bool


def finish_target_s(elapsed_s: FloatArray, remaining_s: FloatArray, share: float) -> FloatArray:
    """Return the time (J,) from submission to end on an equal share: (elapsed + remaining) / share."""
    return (elapsed_s + remaining_s) / share


def log_progress(part: FloatArray) -> FloatArray:
    """Return the published approximation of the logarithm of a part done, from 0 to 1."""
    return np.asarray(np.interp(part, _BREAKPOINTS, _LOGARITHMS))


def unfairness(buyers: Buyers) -> FloatArray:
    """Return the estimated rho (J,): the time from submission to end on an equal share, over the target."""
    left_s = np.where(buyers.fits, buyers.remaining_s, 0.0) / buyers.share
    rho = (buyers.age_s + left_s) / np.maximum(buyers.target_s, 1e-9)
    return np.clip(rho, 1.0 / _MOST_RHO, _MOST_RHO)


def plan_window(buyers: Buyers, rules: MarketRules) -> MarketPlan:
    """Return the rounds that maximise mean(log(part done)) / rounds - makespan_weight * max(remaining time).

    Every job has at least the rounds with which it ends within `max_rho` times its target, on an equal share
    after the window; a target within the window asks for all rounds that the job can use. If the slots do
    not suffice for that, the weights are rho ** unfairness_power instead.
    """
    least = _rounds_for_targets(buyers, rules)
    most = _usable_rounds(buyers, rules)
    fair = bool((least <= most).all() and buyers.slots @ least <= buyers.capacity * rules.rounds + 1e-9)
    rho = unfairness(buyers)
    weight = buyers.weight if fair else buyers.weight * rho**rules.unfairness_power
    rounds = _best_rounds(buyers, rules, weight, least if fair else np.zeros_like(least), most)
    return MarketPlan(rounds=rounds, priority=rounds.astype(float) if fair else rho, fair=fair)


def _usable_rounds(buyers: Buyers, rules: MarketRules) -> IntArray:
    """Return the rounds (J,) of the window that a job can use before it ends."""
    needed = np.ceil(np.where(buyers.fits, buyers.remaining_s, 0.0) / rules.round_s)
    return np.minimum(needed, rules.rounds).astype(np.int64)


def _rounds_for_targets(buyers: Buyers, rules: MarketRules) -> IntArray:
    """Return the fewest rounds (J,) that keep each job within its target; one beyond the window for never."""
    slack_s = buyers.share * (rules.max_rho * buyers.target_s - buyers.age_s - rules.window_s)
    over_s = np.where(buyers.fits, buyers.remaining_s, 0.0) - np.maximum(slack_s, 0.0)
    needed = np.ceil(np.maximum(over_s, 0.0) / rules.round_s - 1e-9)
    return np.where(buyers.fits, np.minimum(needed, rules.rounds + 1), 0).astype(np.int64)


def _best_rounds(
    buyers: Buyers, rules: MarketRules, weight: FloatArray, least: IntArray, most: IntArray
) -> IntArray:
    """Return the rounds (J,) between `least` and `most` with the greatest objective.

    Every value of the longest remaining time gives each job a least number of rounds. The objective is
    nearly concave in that value, so a coarse search is refined around its best value.
    """
    remaining_s = np.where(buyers.fits, buyers.remaining_s, 0.0)
    counts = np.arange(rules.rounds + 1)
    after_s = np.maximum(remaining_s[:, None] - counts * rules.round_s, 0.0)
    whole_s = np.maximum(buyers.elapsed_s + remaining_s, 1e-9)[:, None]
    gain = weight[:, None] * log_progress(1.0 - after_s / whole_s) / max(after_s[:, 1:].size, 1)
    purchases = _Purchases.of(gain, buyers.slots)

    def rounds_above(longest_s: float) -> IntArray:
        needed = np.ceil((remaining_s - longest_s) / rules.round_s - 1e-9)
        return np.minimum(needed, rules.rounds + 1).astype(np.int64)

    def solved(longest_s: float) -> tuple[float, IntArray] | None:
        floor = np.maximum(least, rounds_above(longest_s))
        room = buyers.capacity * rules.rounds - float(buyers.slots @ floor)
        if (floor > most).any() or room < -1e-9:
            return None
        rounds = purchases.fill(room, floor, most)
        rows = np.arange(len(rounds))
        left_s = float(after_s[rows, rounds].max(initial=0.0))
        return float(gain[rows, rounds].sum()) - rules.makespan_weight * left_s, rounds

    values = np.unique(after_s[counts <= most[:, None]]) if len(most) else np.zeros(1)
    best: tuple[float, IntArray] = -np.inf, least
    low, high = 0, len(values) - 1
    at = high
    while True:
        tried = np.unique(np.linspace(low, high, _CANDIDATES).astype(np.int64))
        for index in tried.tolist():
            found = solved(float(values[index]))
            if found is not None and found[0] > best[0]:
                best, at = found, index
        if len(tried) == high - low + 1:
            return best[1]
        step = -(-(high - low) // (_CANDIDATES - 1))
        low, high = max(0, at - step), min(len(values) - 1, at + step)


@dataclass(frozen=True, slots=True)
class _Purchases:
    """Single rounds of the jobs in descending order of their gain per slot, as flat arrays."""

    job: IntArray
    count: IntArray
    """Rounds of the job with this one, from 1."""
    slots: FloatArray

    @classmethod
    def of(cls, gain: FloatArray, slots: FloatArray) -> _Purchases:
        """Return the rounds that gain anything, for gains (J, F + 1) by rounds; equal ones by their count."""
        per_slot = np.diff(gain, axis=1) / np.maximum(slots, 1.0)[:, None]
        job, step = np.nonzero(per_slot > 0)
        order = np.lexsort((step, -per_slot[job, step]))
        return cls(job[order], step[order] + 1, slots[job[order]])

    def fill(self, room: float, floor: IntArray, most: IntArray) -> IntArray:
        """Return the rounds (J,) from `floor` up to `most` that fit, the greatest gains first.

        A job whose next round does not fit gets no further one.
        """
        offered = (self.count > floor[self.job]) & (self.count <= most[self.job])
        job, slots = self.job[offered], self.slots[offered]
        fits = int(np.searchsorted(np.cumsum(slots), room + 1e-9, side="right"))
        rounds = floor + np.bincount(job[:fits], minlength=len(floor))
        room -= float(slots[:fits].sum())
        smallest = float(slots[fits:].min(initial=np.inf))
        for one, wanted in zip(job[fits:].tolist(), slots[fits:].tolist(), strict=True):
            if room + 1e-9 < smallest:
                break
            if wanted <= room + 1e-9:
                rounds[one] += 1
                room -= wanted
        return np.asarray(rounds)
