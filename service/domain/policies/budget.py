"""BOA: the shortest mean response time under a long-run average of dollars per hour.

Li, Berg, Mukhopadhyay, Harchol-Balter, "How to Rent GPUs on a Budget", with prices per configuration: a job of rate
s and price p is best off where (1 + mu * p) / s is least, and mu, hours of delay per dollar, is what the budget makes
it. `Budget` decides with a given mu; `steer` moves mu between rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.arrays import FloatArray
from service.domain.policies.parameter import parameter
from service.domain.policies.policy import Choices, RoundInput
from service.domain.policies.solving import solved
from service.domain.policies.speedup import changed, finite, holding, kind_capacity, usable_goodput, weights
from service.domain.policies.widths import NO_CLASS, NOT_FOR_SALE, column_prices

_HOUR_S = 3600.0
_DOLLARS_ALONE = 1e3
"""Times the price of the cheapest configuration: at such a mu delay hardly counts any more, so mu goes no higher."""
_APART = 0.01
"""How far apart mu is for the two widths of a class that is mixed: enough to tell what is equally good at mu."""
_LEAST_WEIGHT = 1e-6
"""Nobody counts less, so that slots which are free are better taken than not."""
_BISECTIONS = 30
_AHEAD_H = 24.0
"""Hours of a budget that can be spent ahead of time, or be left over."""
_GAIN = 0.1
"""Of the correction, for each hour that is ahead."""
_GAIN_OF_INTEGRAL = 0.01
"""Of the correction, for each hour that an hour is ahead."""
_LASTING = 16.0
"""The most of the correction's integral, a logarithm: nine million times what was expected, or a part of it as small."""
_UNEXPECTED = 0.1
"""Of an hour's delay for an hour's budget: what a dollar is worth where nothing was expected and too much is spent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Rents as much as a long-run average of dollars per hour allows, so that jobs end early on average.

    A job is worth `h * rate - mu * price`, where h is its least (weight + mu * price) / rate: the hours of delay that
    a configuration spares per hour, less its dollars. The most is the weight, exactly where the published rule has its
    optimum; below it the value says what is lost, so that slots, quotas and a cap on dollars, which the theorem does
    not know, are shared where it costs least. To have nothing is worth 0: no job waits to save money that has room
    for its best configuration. A change of slots is charged with the delay and the dollars of its time, over the time
    that it is for. Where no configuration has a price, slots stand for dollars.
    """

    name: ClassVar[str] = "budget"
    usd_per_h: float = parameter(
        -1.0,
        "Dollars per hour, as a long-run average; slots where nothing has a price; -1: what all slots cost.",
        at_least=-1,
    )
    mu_h_per_usd: float = parameter(
        -1.0, "Hours of delay that a dollar is worth; -1: by the jobs that are present.", at_least=-1
    )
    mixed_class: float = parameter(
        NO_CLASS, "Class that has two widths at this mu; -1: none.", at_least=NO_CLASS
    )
    narrow_share: float = parameter(
        0.0, "Share of its jobs that have the cheaper one.", at_least=0, at_most=1
    )
    horizon_s: float = parameter(3600.0, "Seconds that a change is for, at most.", at_least=1)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        prices = column_prices(given.configurations.usd_per_h, given.configurations.slots)
        rate = _rate(given, prices)
        runs = rate > 0
        weight, mu = np.maximum(weights(given), _LEAST_WEIGHT), self._mu_by_job(given)
        cost = weight[:, None] + mu[:, None] * prices
        per_sample = np.where(runs, cost / np.where(runs, rate, 1.0), np.inf).min(axis=1, initial=np.inf)
        worth = np.where(runs, np.where(runs.any(axis=1), per_sample, 0.0)[:, None] * rate, 0.0)
        worth -= mu[:, None] * prices + np.where(changed(given), self._change_share(given, rate) * cost, 0.0)
        idle = -weight * np.where(holding(given), finite(given.change_s) / self.horizon_s, 0.0)
        return solved(given, solve, np.where(runs, worth, -np.inf), idle, "hours of delay per hour")

    def _mu_by_job(self, given: RoundInput) -> FloatArray:
        """(J,) mu; apart for the two parts of the class that is mixed, in the order of submits."""
        mu = self.mu_h_per_usd if self.mu_h_per_usd >= 0 else mu_for_present_jobs(given, self.usd_per_h)
        mixed = given.job_class == self.mixed_class
        turn = np.cumsum(mixed)
        narrow = np.floor(turn * self.narrow_share) > np.floor((turn - 1) * self.narrow_share)
        apart = np.where(narrow, 1.0 + _APART, 1.0 - _APART)
        return mu * np.where(mixed & (self.mixed_class != NO_CLASS), apart, 1.0)

    def _change_share(self, given: RoundInput, rate: FloatArray) -> FloatArray:
        """(J, C) the time that a change takes, as a share of the time that it is for."""
        left_s = finite(given.remaining, otherwise=np.inf)[:, None] / np.where(rate > 0, rate, 1.0)
        return finite(given.change_s)[:, None] / np.clip(left_s, 1.0, self.horizon_s)


def mu_for_present_jobs(given: RoundInput, usd_per_h: float) -> float:
    """The least mu at which the jobs that are present would spend no more than this together: a start, while the
    loads of classes are not known. The highest mu when even that spends more, as with a budget of 0. A negative
    budget is what all slots cost.
    """
    usd_per_h = usd_per_h if usd_per_h >= 0 else price_of_everything(given)
    prices = column_prices(given.configurations.usd_per_h, given.configurations.slots)
    rate = _rate(given, prices)
    present = (rate > 0).any(axis=1)
    rate, weight = rate[present], weights(given)[present, None]
    runs, per_rate = rate > 0, 1.0 / np.where(rate > 0, rate, 1.0)

    def spends(mu: float) -> float:
        cost = np.where(runs, (weight + mu * prices) * per_rate, np.inf)
        return float(prices[cost.argmin(axis=1)].sum())

    if not present.any() or spends(0.0) <= usd_per_h:
        return 0.0
    high = highest_mu(prices)
    low = 1e-9 * high
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spends(middle) <= usd_per_h else (middle, high)
    return high


def price_of_everything(given: RoundInput) -> float:
    """Dollars per hour of all slots that the rows allow, each in the configuration of its kind that is cheapest."""
    configurations = given.configurations
    prices = column_prices(configurations.usd_per_h, configurations.slots)
    per_slot = prices / np.maximum(configurations.slots, 1)
    capacity = kind_capacity(given)
    cheapest = [
        per_slot[configurations.kind == kind].min(initial=NOT_FOR_SALE) for kind in range(len(capacity))
    ]
    return float(capacity @ np.array(cheapest))


def highest_mu(prices: FloatArray) -> float:
    """The mu beyond which delay hardly counts against dollars any more."""
    return _DOLLARS_ALONE / float(np.where(prices > 0, prices, np.inf).min(initial=_DOLLARS_ALONE))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """What a cluster under a budget remembers between rounds; numbers only, so that `dataclasses.asdict` is its JSON.

    `mu_h_per_usd` is for the next round, -1 while nothing is known. `ahead_h` is how many hours of the budget have been
    spent in advance; less than 0 of money that was left over. `lasting` is the part of the correction that stays when
    nothing is ahead: the logarithm of how much dearer a dollar is than was expected.
    """

    mu_h_per_usd: float = -1.0
    ahead_h: float = 0.0
    lasting: float = 0.0
    spent_usd: float = 0.0
    elapsed_s: float = 0.0

    @property
    def average_usd_per_h(self) -> float:
        """Dollars per hour since the budget began; 0 before."""
        return self.spent_usd / self.elapsed_s * _HOUR_S if self.elapsed_s > 0 else 0.0


def steer(
    state: BudgetState,
    *,
    realised_usd: float,
    elapsed_s: float,
    budget_usd_per_h: float,
    expected_h_per_usd: float,
    highest_h_per_usd: float,
) -> BudgetState:
    """The state after `elapsed_s` seconds in which `realised_usd` were spent.

    mu is `expected_h_per_usd`, the one of `fixed_widths` for the learned loads (or `mu_for_present_jobs`), times e to the
    power of a correction, since what is expected may be wrong by orders of magnitude. The correction is proportional to
    what was spent ahead of time, and to its integral: so it is the average since the beginning that is kept, not that of
    the last hour, and nothing has to stay ahead for it. It is slow, because one price of delay for all times, busy ones
    and calm ones, is what serves jobs best. What is ahead or left over counts up to a day's budget: money that could not
    be spent for want of jobs is not saved up without limit, and one absurd bill is got over. Where so much is left over, a
    dollar is worth nothing, and nothing more is learned from what could not be spent. A negative budget, which is none,
    corrects nothing; spend or time that is no number changes nothing.
    """
    if not (math.isfinite(realised_usd) and realised_usd >= 0 and math.isfinite(elapsed_s) and elapsed_s > 0):
        return state
    hours = elapsed_s / _HOUR_S
    ahead_h, lasting, mu = state.ahead_h, state.lasting, expected_h_per_usd
    if budget_usd_per_h == 0:
        mu = highest_h_per_usd
    elif budget_usd_per_h > 0:
        ahead_h = ahead_h + realised_usd / budget_usd_per_h - hours
        left_over = ahead_h <= -_AHEAD_H
        ahead_h = min(max(ahead_h, -_AHEAD_H), _AHEAD_H)
        lasting += 0.0 if left_over else _GAIN_OF_INTEGRAL * ahead_h * hours
        lasting = min(max(lasting, -_LASTING), _LASTING)
        dearer = 0.0 if left_over else math.exp(_GAIN * ahead_h + lasting)
        mu = expected_h_per_usd * dearer + _UNEXPECTED * max(dearer - 1.0, 0.0) / budget_usd_per_h
    return BudgetState(
        mu_h_per_usd=min(max(mu, 0.0), highest_h_per_usd),
        ahead_h=ahead_h,
        lasting=lasting,
        spent_usd=state.spent_usd + realised_usd,
        elapsed_s=state.elapsed_s + elapsed_s,
    )


def _rate(given: RoundInput, prices: FloatArray) -> FloatArray:
    """(J, C) goodput of what each job could have if it were alone; 0 where there is none or no price."""
    rate = np.where(prices < NOT_FOR_SALE, usable_goodput(given), 0.0)
    for row in given.rows:
        counts = np.ones(len(rate), dtype=np.bool_) if row.jobs is None else row.jobs
        rate = np.where(counts[:, None] & ~(row.demand <= row.capacity), 0.0, rate)
    return rate
