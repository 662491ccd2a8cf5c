"""Budget policy (BOA): the shortest mean response time under a long-run average of dollars per hour.

Li, Berg, Mukhopadhyay, Harchol-Balter, "How to Rent GPUs on a Budget", with prices per configuration. A job
of rate s and price p does best where (1 + mu * p) / s is least. mu, in hours of delay per dollar, follows
from the budget. `BudgetPolicy` decides with a given mu; `advance` and `steer` adjust mu between rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.class_statistics import (
    ClassStatistics,
    expected_widths,
    from_json,
    observe_jobs,
)
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, Policy, RoundHistory, RoundInput
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import (
    changed,
    finite,
    holding,
    kind_capacity,
    stop_cost_s,
    usable_goodput,
    weights,
)
from service.domain.policies.framework.widths import NO_CLASS, NOT_FOR_SALE, UNSTABLE, Widths, column_prices
from service.domain.shared.arrays import FloatArray

_HOUR_S = 3600.0
_MU_BOUND = 1e3
"""Upper bound of mu times the price of the cheapest configuration: beyond it, delay hardly counts."""
_MU_DISTANCE = 0.1
"""Relative distance from mu for the two widths of a mixed class, which are equally good at mu itself.

Jobs of a class are measured one by one. A tenth exceeds the scatter of their speedups, and costs little: the loss grows
with its square.
"""
_MIXING_BAND = 0.2
"""Logarithm of the correction of mu that moves a mixed class from one width to the other.

Two hours of the budget spent in advance, or left over, are worth that much. Within the band mu stays as it is, so that
spending follows the correction continuously and not in steps.
"""
_LEAST_WEIGHT = 1e-6
"""Minimum weight of a job, so that taking free slots is better than leaving them."""
_BISECTIONS = 30
_MAX_AHEAD_H = 24.0
"""Maximum number of hours of a budget that can be spent in advance or be left over."""
_GAIN = 0.1
"""Change of the correction for each hour of the budget that is spent in advance."""
_GAIN_OF_INTEGRAL = 0.01
"""Change of the correction's integral for each hour of the budget spent in advance, per hour of time."""
_MAX_LASTING = 16.0
"""Bound on the correction's integral, a logarithm: a factor of nine million up or down."""
_UNEXPECTED = 0.1
"""Worth of a dollar where none was expected and too much is spent, in hours of delay per hour's budget."""


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """Short mean response time within a long-run average of dollars per hour.

    A job is worth `h * rate - mu * price`, where h is its least (weight + mu * price) / rate: the hours of
    delay that a configuration spares per hour, less its dollars. The maximum is the weight, exactly where the
    published rule has its optimum. Below it the value states the loss, so that slots, quotas and a cap on
    dollars, which the theorem does not cover, are shared where it costs least.

    Having nothing is worth 0: no job that has capacity for its best configuration waits to save money. A
    change of slots is charged with the delay and the dollars of its time, over the time that it serves. If no
    configuration has a price, slots stand for dollars.
    """

    name: ClassVar[str] = "budget"
    usd_per_h: float = parameter(
        -1.0,
        "Long-run average of dollars per hour; in slots if nothing has a price. -1: the price of all slots.",
        at_least=-1,
    )
    mu_h_per_usd: float = parameter(
        -1.0, "Worth of a dollar in hours of delay. -1: derived from the present jobs.", at_least=-1
    )
    mixed_class: float = parameter(
        NO_CLASS, "Index of the class that has two widths at this mu; -1: none.", at_least=NO_CLASS
    )
    narrow_share: float = parameter(
        0.0, "Fraction of that class's jobs with the cheaper width.", at_least=0, at_most=1
    )
    rents_usd_per_h: float = parameter(
        -1.0,
        "Maximum dollars per hour of rented machines; -1: none. Derived while the budget cannot pay all jobs.",
        at_least=-1,
    )
    horizon_s: float = parameter(
        3600.0, "Maximum time in seconds that a change is assumed to serve.", at_least=1
    )

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices that spare the most delay, net of dollars at the worth mu."""
        prices = column_prices(given.configurations.usd_per_h, given.configurations.slots)
        rate = _rate(given, prices)
        runs = rate > 0
        weight = np.maximum(weights(given), _LEAST_WEIGHT)
        mu = self._mu_by_job(given, weight, rate, prices)
        cost = weight[:, None] + mu[:, None] * prices
        per_sample = np.where(runs, cost / np.where(runs, rate, 1.0), np.inf).min(axis=1, initial=np.inf)
        worth = np.where(runs, np.where(runs.any(axis=1), per_sample, 0.0)[:, None] * rate, 0.0)
        worth -= mu[:, None] * prices + np.where(changed(given), self._change_share(given, rate) * cost, 0.0)
        idle = -weight * np.where(holding(given), stop_cost_s(given) / self.horizon_s, 0.0)
        return solved(given, solve, np.where(runs, worth, -np.inf), idle, "hours of delay per hour")

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[BudgetPolicy, Mapping[str, Any]]:
        """Return the policy with the mu that follows from arrivals and spending so far; with a fixed mu, the
        policy as it is.
        """
        if self.mu_h_per_usd >= 0:
            return self, {}
        state, statistics = stored_state(history.state)
        statistics = observe_jobs(statistics, given, history)
        widths = self._expected_widths(given, statistics)
        state = self._steered(given, widths, state, usd_per_h=history.usd_per_h, elapsed_s=history.elapsed_s)
        carried = {"budget": asdict(state), "classes": asdict(statistics)}
        names = sorted(statistics.classes)
        limit = self.usd_per_h * max(1.0 - state.ahead_h, 0.0) if self._is_too_small(given, widths) else -1.0
        mixed_class = job_class_of(given, history, names, widths)
        return self._with_widths(state, widths, mixed_class, rents_usd_per_h=limit), carried

    def after_spending(
        self,
        given: RoundInput,
        statistics: ClassStatistics,
        state: BudgetState,
        *,
        usd_per_h: float,
        elapsed_s: float,
    ) -> BudgetState:
        """Return the state after `elapsed_s` seconds at `usd_per_h`; it is unchanged if these are unknown (0)."""
        widths = self._expected_widths(given, statistics)
        return self._steered(given, widths, state, usd_per_h=usd_per_h, elapsed_s=elapsed_s)

    def _expected_widths(self, given: RoundInput, statistics: ClassStatistics) -> Widths | None:
        average_usd_per_h = price_of_everything(given) if self.usd_per_h < 0 else self.usd_per_h
        return expected_widths(statistics, given.configurations, budget_usd_per_h=average_usd_per_h)

    def _steered(
        self,
        given: RoundInput,
        widths: Widths | None,
        state: BudgetState,
        *,
        usd_per_h: float,
        elapsed_s: float,
    ) -> BudgetState:
        configurations = given.configurations
        return steer(
            state,
            realised_usd=usd_per_h * elapsed_s / _HOUR_S,
            elapsed_s=elapsed_s,
            budget_usd_per_h=self.usd_per_h,
            expected_h_per_usd=mu_for_present_jobs(given, self.usd_per_h)
            if widths is None
            else widths.mu_h_per_usd,
            highest_h_per_usd=highest_mu(column_prices(configurations.usd_per_h, configurations.slots)),
        )

    def _is_too_small(self, given: RoundInput, widths: Widths | None) -> bool:
        """Return True if the budget cannot pay all jobs at their cheapest: by learned loads, or else those present."""
        if self.usd_per_h < 0:
            return False
        if widths is not None:
            return widths.status == UNSTABLE
        prices = column_prices(given.configurations.usd_per_h, given.configurations.slots)
        return mu_for_present_jobs(given, self.usd_per_h) >= highest_mu(prices)

    def _with_widths(
        self, state: BudgetState, widths: Widths | None, mixed_class: int, *, rents_usd_per_h: float
    ) -> BudgetPolicy:
        """Return the policy for this round: with mu, or with the two widths of a mixed class.

        While the correction of mu is within `_MIXING_BAND`, it moves the share of the narrow width instead.
        """
        policy = replace(self, mu_h_per_usd=state.mu_h_per_usd, rents_usd_per_h=rents_usd_per_h)
        if widths is None or mixed_class == NO_CLASS or not min(state.mu_h_per_usd, widths.mu_h_per_usd) > 0:
            return policy
        correction = math.log(state.mu_h_per_usd / widths.mu_h_per_usd)
        narrow_share = widths.narrow_share + correction / _MIXING_BAND
        if not 0.0 <= narrow_share <= 1.0:
            return policy
        return replace(
            policy,
            mu_h_per_usd=widths.mu_h_per_usd,
            mixed_class=float(mixed_class),
            narrow_share=narrow_share,
        )

    def _mu_by_job(
        self, given: RoundInput, weight: FloatArray, rate: FloatArray, prices: FloatArray
    ) -> FloatArray:
        """Return mu (J,) for each job. The two parts of the mixed class have different values.

        Jobs keep their width where the share allows it: those that hold a narrow one are narrow first, then those that
        hold none, in submission order.
        """
        mu = self.mu_h_per_usd if self.mu_h_per_usd >= 0 else mu_for_present_jobs(given, self.usd_per_h)
        by_job = np.full(len(given.weight), mu)
        mixed = np.flatnonzero((given.job_class == self.mixed_class) & (self.mixed_class != NO_CLASS))
        if not len(mixed):
            return by_job
        values = mu * np.array([1.0 + _MU_DISTANCE, 1.0 - _MU_DISTANCE])
        runs = rate[mixed] > 0
        per_sample = [
            np.where(runs, (weight[mixed, None] + value * prices) / np.where(runs, rate[mixed], 1.0), np.inf)
            for value in values
        ]
        middle = sum(prices[one.argmin(axis=1)] for one in per_sample) / 2
        current = given.current[mixed]
        width = np.where(current >= 0, np.sign(prices[current] - middle), 0.0)
        narrow = np.argsort(width, kind="stable")[: round(self.narrow_share * len(mixed))]
        by_job[mixed] = values[1]
        by_job[mixed[narrow]] = values[0]
        return by_job

    def _change_share(self, given: RoundInput, rate: FloatArray) -> FloatArray:
        """Return the time of a change (J, C) as a fraction of the time that it serves."""
        left_s = finite(given.remaining, otherwise=np.inf)[:, None] / np.where(rate > 0, rate, 1.0)
        return finite(given.change_s)[:, None] / np.clip(left_s, 1.0, self.horizon_s)


def long_run_budget(policy: Policy) -> BudgetPolicy | None:
    """Return the budget policy if it has a budget or a fixed mu."""
    inner = policy.policy if isinstance(policy, CheckedPolicy) else policy
    if isinstance(inner, BudgetPolicy) and (inner.usd_per_h >= 0 or inner.mu_h_per_usd >= 0):
        return inner
    return None


def job_class_of(
    given: RoundInput, history: RoundHistory, names: Sequence[str], widths: Widths | None
) -> int:
    """Return the index, in this round, of the class that `widths` mixes; `NO_CLASS` if no job of it is present.

    `names` are the classes of `widths` in order.
    """
    if widths is None or widths.mixed_class == NO_CLASS:
        return NO_CLASS
    mixed = names[widths.mixed_class]
    present = zip(given.job_class.tolist(), history.classes, strict=True)
    return next((index for index, name in present if name == mixed), NO_CLASS)


def mu_for_present_jobs(given: RoundInput, usd_per_h: float) -> float:
    """Return the least mu at which the present jobs together spend at most `usd_per_h`.

    This is the initial value while the loads of classes are unknown. If even the highest mu spends more, as
    with a budget of 0, the result is the highest mu. A negative budget stands for the price of all slots.
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
    """Return the dollars per hour of all slots that the rows allow, each in the cheapest configuration of its
    kind.
    """
    configurations = given.configurations
    prices = column_prices(configurations.usd_per_h, configurations.slots)
    per_slot = prices / np.maximum(configurations.slots, 1)
    capacity = kind_capacity(given)
    cheapest = [
        per_slot[configurations.kind == kind].min(initial=NOT_FOR_SALE) for kind in range(len(capacity))
    ]
    return float(capacity @ np.array(cheapest))


def highest_mu(prices: FloatArray) -> float:
    """Return the mu beyond which delay hardly counts against dollars any more."""
    return _MU_BOUND / float(np.where(prices > 0, prices, np.inf).min(initial=_MU_BOUND))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """State of a budget between rounds. It holds numbers only, so that `dataclasses.asdict` gives its JSON.

    `mu_h_per_usd` is for the next round, -1 while nothing is known. `ahead_h` is the number of hours of the
    budget spent in advance, negative for money left over. `lasting` is the part of the correction that
    remains when nothing is ahead: the logarithm of the ratio between the actual and the expected worth of a
    dollar.
    """

    mu_h_per_usd: float = -1.0
    ahead_h: float = 0.0
    lasting: float = 0.0
    spent_usd: float = 0.0
    elapsed_s: float = 0.0

    @property
    def average_usd_per_h(self) -> float:
        """Mean dollars per hour since the budget began; 0 before."""
        return self.spent_usd / self.elapsed_s * _HOUR_S if self.elapsed_s > 0 else 0.0


def stored_state(state: Mapping[str, Any]) -> tuple[BudgetState, ClassStatistics]:
    """Return the stored state of the budget; the initial one where nothing is stored."""
    budget = state.get("budget", {})
    known = {one.name: budget[one.name] for one in fields(BudgetState) if one.name in budget}
    return BudgetState(**known), from_json(state.get("classes", {}))


def steer(
    state: BudgetState,
    *,
    realised_usd: float,
    elapsed_s: float,
    budget_usd_per_h: float,
    expected_h_per_usd: float,
    highest_h_per_usd: float,
) -> BudgetState:
    """Return the state after `elapsed_s` seconds in which `realised_usd` were spent.

    mu is `expected_h_per_usd` (from `fixed_widths` for the learned loads, or from `mu_for_present_jobs`)
    times e to the power of a correction, because the expected value may be wrong by orders of magnitude. The
    correction has a part proportional to the money spent in advance and an integral part. It therefore keeps
    the average since the beginning, not that of the last hour, without a lasting offset. It is slow, because
    one price of delay for busy and calm times serves jobs best.

    The amount ahead or left over is limited to a day's budget. Money that is not spent for lack of jobs does
    not accumulate without limit, and the controller recovers from one absurd bill. While that limit of money
    is left over, a dollar is worth nothing and the integral stays as it is.

    A negative budget means no budget and corrects nothing. Invalid dollars or seconds leave the state
    unchanged.
    """
    if not (math.isfinite(realised_usd) and realised_usd >= 0 and math.isfinite(elapsed_s) and elapsed_s > 0):
        return state
    hours = elapsed_s / _HOUR_S
    ahead_h, lasting, mu = state.ahead_h, state.lasting, expected_h_per_usd
    if budget_usd_per_h == 0:
        mu = highest_h_per_usd
    elif budget_usd_per_h > 0:
        ahead_h = ahead_h + realised_usd / budget_usd_per_h - hours
        left_over = ahead_h <= -_MAX_AHEAD_H
        ahead_h = min(max(ahead_h, -_MAX_AHEAD_H), _MAX_AHEAD_H)
        lasting += 0.0 if left_over else _GAIN_OF_INTEGRAL * ahead_h * hours
        lasting = min(max(lasting, -_MAX_LASTING), _MAX_LASTING)
        factor = 0.0 if left_over else math.exp(_GAIN * ahead_h + lasting)
        mu = expected_h_per_usd * factor + _UNEXPECTED * max(factor - 1.0, 0.0) / budget_usd_per_h
    return BudgetState(
        mu_h_per_usd=min(max(mu, 0.0), highest_h_per_usd),
        ahead_h=ahead_h,
        lasting=lasting,
        spent_usd=state.spent_usd + realised_usd,
        elapsed_s=state.elapsed_s + elapsed_s,
    )


def _rate(given: RoundInput, prices: FloatArray) -> FloatArray:
    """Return the goodput (J, C) that each job could have if it were alone; 0 for an unusable or unpriced
    configuration.
    """
    rate = np.where(prices < NOT_FOR_SALE, usable_goodput(given), 0.0)
    for row in given.rows:
        counts = np.ones(len(rate), dtype=np.bool_) if row.jobs is None else row.jobs
        rate = np.where(counts[:, None] & ~(row.demand <= row.capacity), 0.0, rate)
    return rate
