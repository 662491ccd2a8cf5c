"""Prices at which a decision about machines values goodput: by the best buy, or by the price of delay.

Under the policy `budget`, an hour of delay costs 1/mu dollars. A job of weight w with W samples left, at the
speed s(c) on slots c of p(c) dollars per hour, has this delay and these dollars until its end:

    W * h(c), where h(c) = (w + mu * p(c)) / s(c)

Li, Berg, Mukhopadhyay, Harchol-Balter, "How to Rent GPUs on a Budget", minimise h(c). More machines of q dollars
per hour change c to d. They are worth renting if h falls, h(d) < h(c) with p(d) = p(c) + q. That is the same as

    h(c) * (s(d) - s(c)) > mu * q

so h(c) is the price of a running job's goodput. A waiting job has the price of its best configuration. There,
the time of a start is delay, and all machines are also paid for while they boot, are idle, or are billed for a
minimum time; `Startup.used_share` spreads these dollars over the hours of use.

Under other policies, a job's goodput costs what it costs at the best buy on offer, divided by the `GOOD_BUY` of
its objective.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.snapshot import Node
from service.domain.policies.budget import BudgetPolicy, long_run_budget, mu_for_present_jobs
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.policy import Policy, RoundInput
from service.domain.policies.framework.speedup import finite, holding, known_length, usable_goodput, weights
from service.domain.rental.candidates import Candidate, made_up
from service.domain.rental.worth.clusters import RentalCluster, RentalRound
from service.domain.rental.worth.startup import USUAL_BOOT_S, unused_s
from service.domain.shared.arrays import FloatArray, IntArray, NumberArray

GOOD_BUY = MappingProxyType({"cost": 0.9, "balanced": 0.5, "time": 0.1})
"""Minimum marginal goodput per dollar, relative to the first dollar, by a job's objective."""
HYSTERESIS = 1.5
"""Hysteresis factor. By the price of delay, a machine with jobs is kept while it is worth its price at mu divided by this
factor. Otherwise it is kept while it is worth its price divided by this factor.
"""
_MOST_MACHINES = 64
"""Maximum number of machines of an offer on the hypothetical cluster that has everything on offer."""
_MOST_AT_ONCE = 16
"""Maximum number of machines of an offer for the smallest size of a job."""
_LEAST_MU_H_PER_USD = 1e-6
"""Lower bound of mu: an hour of delay is worth at most a million dollars."""
_LEAST_WEIGHT = 1e-6
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Times of machines that are paid for and not used. `boot_s` is by provider and instance type."""

    boot_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    idle_s: float = 0.0

    def boot_of(self, candidate: Candidate) -> float:
        """Return the seconds until a machine of a candidate takes jobs."""
        place = candidate.offer.provider, candidate.offer.instance_type
        return self.boot_s.get(place, USUAL_BOOT_S)

    def used_share(self, candidate: Candidate, use_s: float) -> float:
        """Return the share of the paid time of a machine in which jobs use it."""
        unused = float(
            unused_s(
                use_s,
                boot_s=self.boot_of(candidate),
                idle_s=self.idle_s,
                min_billed_s=finite(np.array([candidate.offer.min_billed_s]))[0],
            )
        )
        return use_s / (use_s + unused) if use_s + unused > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of goodput for one decision.

    Attributes:
        policy: the policy that solves its rounds, with a fixed mu by the price of delay.
        usd: dollars per hour for a sample per second, by job; by the price of delay only for waiting jobs.
        widths: slots of each job at which its work costs least by the price of delay; empty otherwise.
        mu_h_per_usd: hours of delay that a dollar is worth; None without a price of delay.
        horizon_s: seconds that a job of unknown length is assumed to use a machine.
        rents_usd_per_h: maximum dollars per hour of rented machines, of a budget that cannot pay all jobs at their
            cheapest; otherwise infinite.
    """

    policy: Policy
    usd: Mapping[str, float]
    widths: Mapping[str, int] = field(default_factory=dict)
    mu_h_per_usd: float | None = None
    horizon_s: float = 0.0
    rents_usd_per_h: float = math.inf
    candidates: Sequence[Candidate] = ()

    def running_usd(self, round_: RentalRound, chosen: IntArray) -> dict[str, float]:
        """Return the price of each job's goodput at the columns (J,) that it is given; empty without a price of delay."""
        if self.mu_h_per_usd is None:
            return {}
        given, mu = round_.given, self.mu_h_per_usd
        usd = _price_of_slots(round_, self.candidates)
        weight = _weights(given)
        return {
            job.id: (weight[row] / mu + usd[column]) / given.goodput[row, column]
            for row, (job, column) in enumerate(zip(round_.jobs, chosen.tolist(), strict=True))
            if column != NOTHING and given.goodput[row, column] > 0
        }


def prices_of(
    base: RentalCluster, candidates: Sequence[Candidate], policy: Policy, *, room: int, startup: Startup
) -> tuple[Prices, Prices]:
    """Return the prices at which to rent machines, and those at which to keep machines with jobs.

    `room` is the number of machines that may be rented beside the present ones.
    """
    budget = long_run_budget(policy)
    round_ = base.plus(_on_offer(base, candidates, room if budget else 0)).round(policy)
    if budget is None:
        prices = Prices(policy=policy, usd=_best_buys(round_, candidates))
        return prices, prices
    steered = long_run_budget(round_.policy) or budget
    mu = steered.mu_h_per_usd
    mu = mu_for_present_jobs(round_.given, steered.usd_per_h) if mu < 0 else mu
    return (
        _by_delay(round_, candidates, steered, max(mu, _LEAST_MU_H_PER_USD), startup),
        _by_delay(round_, candidates, steered, max(mu / HYSTERESIS, _LEAST_MU_H_PER_USD), startup),
    )


def _on_offer(base: RentalCluster, candidates: Sequence[Candidate], room: int) -> list[Node]:
    """Return nodes of every offer, as many as the smallest size of any job takes.

    Of the offer with the cheapest slots in each pool, there are as many as the largest size takes, up to `room`.
    """
    smallest = max((size for size, _ in base.sizes), default=1)
    largest = max((size for _, size in base.sizes), default=1)
    nodes: list[Node] = []
    seen = set()
    for index, one in enumerate(candidates):
        pool = one.offer.device_kind, one.market
        count = min(-(-smallest // one.offer.devices), _MOST_AT_ONCE)
        if pool not in seen:
            count = max(count, min(-(-largest // one.offer.devices), room, _MOST_MACHINES))
        seen.add(pool)
        nodes += made_up(one, count, f"offer-{index}")
    return nodes


def _best_buys(round_: RentalRound, candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the highest price of each job's goodput, in dollars per hour for a sample per second.

    It is the price where a dollar buys most of the goodput available to the job, divided by the `GOOD_BUY` of
    its objective.
    """
    given = round_.given
    usd, goodput = _price_in_machines(round_, candidates, round_.parts), given.goodput
    found = {}
    for row, job in enumerate(round_.jobs):
        useful = given.allowed[row] & (goodput[row] > 0) & (usd > 0)
        if useful.any():
            best = float(np.max(goodput[row][useful] / usd[useful]))
            found[job.id] = 1.0 / (best * GOOD_BUY[job.objective])
    return found


def _by_delay(
    round_: RentalRound,
    candidates: Sequence[Candidate],
    policy: BudgetPolicy,
    mu_h_per_usd: float,
    startup: Startup,
) -> Prices:
    """Return the best widths by the price of delay, and the prices of goodput there with the start of machines."""
    given, mu = round_.given, mu_h_per_usd
    rate = usable_goodput(given)
    runs = rate > 0
    safe = np.where(runs, rate, 1.0)
    usd = _price_in_machines(round_, candidates, _beyond_own(round_))
    held = np.where(holding(given), usd[np.maximum(given.current, 0)] if len(usd) else 0.0, 0.0)
    more = np.maximum(usd - held[:, None], 0.0)
    left_s = np.where(known_length(given)[:, None], finite(given.remaining)[:, None] / safe, policy.horizon_s)
    left_s = np.maximum(left_s, 1.0)
    boot_s, min_billed_s = _boot_and_billing(round_, candidates, startup)
    waits_s = np.where(holding(given)[:, None] | (more <= 0), 0.0, boot_s)
    unused = unused_s(left_s, boot_s=boot_s, idle_s=startup.idle_s, min_billed_s=min_billed_s)
    weight = _weights(given)[:, None]
    cost = weight * (left_s + waits_s) + mu * (usd * left_s + more * unused)
    per_work = np.where(runs, cost / left_s / safe, np.inf)
    usd_by_job, widths = {}, {}
    for row, job in enumerate(round_.jobs):
        if runs[row].any():
            best = int(per_work[row].argmin())
            usd_by_job[job.id] = float(per_work[row, best]) / mu
            widths[job.id] = int(given.configurations.slots[best])
    fixed: Policy = replace(policy, mu_h_per_usd=mu)
    return Prices(
        policy=CheckedPolicy(fixed) if isinstance(round_.policy, CheckedPolicy) else fixed,
        usd=usd_by_job,
        widths=widths,
        mu_h_per_usd=mu,
        horizon_s=policy.horizon_s,
        rents_usd_per_h=policy.rents_usd_per_h if policy.rents_usd_per_h >= 0 else math.inf,
        candidates=candidates,
    )


def _price_in_machines(
    round_: RentalRound, candidates: Sequence[Candidate], parts: NumberArray
) -> FloatArray:
    """Return the dollars per hour (C,) of the machines for these slots (C, P), or of the slots if none is on offer."""
    usd = np.zeros(len(parts))
    for index, pool in enumerate(round_.pools):
        slots = parts[:, index]
        machines = [
            np.ceil(slots / one.offer.devices) * one.usd_per_h
            for one in candidates
            if (one.offer.device_kind, one.market) == pool
        ]
        paid = np.where(slots > 0, slots * round_.usd_per_slot_h[index], 0.0)
        usd += np.min(machines, axis=0) if machines else paid
    return usd


def _price_of_slots(round_: RentalRound, candidates: Sequence[Candidate]) -> FloatArray:
    """Return the dollars per hour (C,) of the rented slots of each column, at the cheapest price of a slot on offer."""
    usd = np.zeros(len(round_.parts))
    for index, (pool, slots) in enumerate(zip(round_.pools, _beyond_own(round_).T, strict=True)):
        on_offer = [
            one.usd_per_h / one.offer.devices
            for one in candidates
            if (one.offer.device_kind, one.market) == pool
        ]
        price = min(on_offer, default=round_.usd_per_slot_h[index])
        usd += np.where(slots > 0, slots * price, 0.0)
    return usd


def _beyond_own(round_: RentalRound) -> FloatArray:
    """Return the slots (C, P) of each column beyond the job's equal share of the hosts that are not rented.

    Those hosts cost the same whatever is rented.
    """
    return np.maximum(round_.parts - round_.own / max(len(round_.jobs), 1), 0.0)


def _weights(given: RoundInput) -> FloatArray:
    return np.maximum(weights(given), _LEAST_WEIGHT)


def _boot_and_billing(
    round_: RentalRound, candidates: Sequence[Candidate], startup: Startup
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of a start and of the minimum billing (C,) of the cheapest slots in a column's pools."""
    boot_s, min_billed_s = np.zeros(len(round_.parts)), np.zeros(len(round_.parts))
    for index, pool in enumerate(round_.pools):
        on_offer = (one for one in candidates if (one.offer.device_kind, one.market) == pool)
        cheapest = next(on_offer, None)
        if cheapest is not None:
            takes = round_.parts[:, index] > 0
            billed_s = finite(np.array([cheapest.offer.min_billed_s]))[0]
            boot_s = np.maximum(boot_s, np.where(takes, startup.boot_of(cheapest), 0.0))
            min_billed_s = np.maximum(min_billed_s, np.where(takes, billed_s, 0.0))
    return boot_s, min_billed_s
