"""A policy with a memory: under a budget the price of delay follows what arrives, and what was really spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from service.domain.allocation.round import Round
from service.domain.cluster import Spent
from service.domain.jobs import class_of
from service.domain.policies.budget import (
    Budget,
    BudgetState,
    highest_mu,
    mu_for_present_jobs,
    price_of_everything,
    steer,
)
from service.domain.policies.class_statistics import (
    ClassStatistics,
    expected_widths,
    from_json,
    observe_jobs,
)
from service.domain.policies.policy import Policy, RoundInput
from service.domain.policies.widths import column_prices

_LONGEST_S = 3600.0
"""If no round was held for longer, nothing is known of what was spent meanwhile."""
_ASKED_FROM = timedelta(days=1)


def steered(policy: Policy, round_: Round) -> tuple[Policy, Mapping[str, Any]]:
    """The policy for this round, and what is to be carried over to the next one. Only a budget carries something."""
    if not isinstance(policy, Budget) or policy.mu_h_per_usd >= 0:
        return policy, {}
    before, now = round_.snapshot.policy_state, round_.snapshot.now
    elapsed_s = _elapsed_s(before, now)
    state_before, statistics_before = remembered(before)
    statistics = _observed(round_, statistics_before, elapsed_s)
    state = after_spending(
        policy,
        round_.given,
        statistics,
        state_before,
        usd_per_h=_usd_per_h(round_, elapsed_s),
        elapsed_s=elapsed_s,
    )
    carried: dict[str, Any] = {"budget": asdict(state), "classes": asdict(statistics), "at": now.isoformat()}
    if round_.snapshot.spent is not None:
        carried["ledger"] = _ledger_after(round_.snapshot.spent, now)
    return replace(policy, mu_h_per_usd=state.mu_h_per_usd), carried


def _observed(round_: Round, statistics: ClassStatistics, elapsed_s: float) -> ClassStatistics:
    """With the jobs that this round sees."""
    totals = [job.progress.total_samples for job in round_.jobs]
    return observe_jobs(
        statistics,
        round_.given,
        elapsed_s=elapsed_s,
        job_ids=[job.id for job in round_.jobs],
        classes=[class_of(job.spec) for job in round_.jobs],
        samples=np.array([math.nan if total is None else float(total) for total in totals]),
    )


def after_spending(
    policy: Budget,
    given: RoundInput,
    statistics: ClassStatistics,
    state: BudgetState,
    *,
    usd_per_h: float,
    elapsed_s: float,
) -> BudgetState:
    """The state after `elapsed_s` seconds in which so much was spent; as it is where these are not known (0)."""
    configurations = given.configurations
    unlimited = policy.usd_per_h < 0
    average_usd_per_h = price_of_everything(given) if unlimited else policy.usd_per_h
    widths = expected_widths(statistics, configurations, budget_usd_per_h=average_usd_per_h)
    return steer(
        state,
        realised_usd=usd_per_h * elapsed_s / 3600,
        elapsed_s=elapsed_s,
        budget_usd_per_h=policy.usd_per_h,
        expected_h_per_usd=mu_for_present_jobs(given, policy.usd_per_h)
        if widths is None
        else widths.mu_h_per_usd,
        highest_h_per_usd=highest_mu(column_prices(configurations.usd_per_h, configurations.slots)),
    )


def _usd_per_h(round_: Round, elapsed_s: float) -> float:
    """What was spent since the round before, over that time: what the ledger has got since then, or, where it was not asked
    yet, what all slots that are held cost now. Slots themselves where nothing has a price.
    """
    snapshot, owned = round_.snapshot, not np.any(round_.given.configurations.usd_per_h > 0)
    if owned:
        return float(len(snapshot.held))
    before = snapshot.policy_state.get("ledger", {})
    if (
        snapshot.spent is not None
        and elapsed_s > 0
        and before.get("since") == snapshot.spent.since.isoformat()
    ):
        usd = before.get("usd")
        if isinstance(usd, int | float):
            return max(0.0, snapshot.spent.usd - usd) / elapsed_s * 3600
    return sum(snapshot.usd_per_slot_h_of_key(key) for key in snapshot.held)


def _ledger_after(spent: Spent, now: datetime) -> dict[str, Any]:
    """What the next round is to compare the ledger with. Once a day it is asked from another hour on, so that sums stay
    small; what it has since then is not known before the next round.
    """
    if now - spent.since < _ASKED_FROM:
        return {"since": spent.since.isoformat(), "usd": spent.usd}
    return {"since": hour_of(now).isoformat(), "usd": None}


def asked_since(carried: Mapping[str, Any], now: datetime) -> datetime:
    """From which hour on the ledger is to be asked for this round, by what was carried over; from this hour on at first."""
    try:
        return datetime.fromisoformat(carried["ledger"]["since"])
    except (KeyError, TypeError, ValueError):
        return hour_of(now)


def hour_of(moment: datetime) -> datetime:
    """The beginning of its hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def remembered(carried: Mapping[str, Any]) -> tuple[BudgetState, ClassStatistics]:
    """What was carried over from the round before; of nothing, as at the beginning."""
    budget = carried.get("budget", {})
    known = {one.name: budget[one.name] for one in fields(BudgetState) if one.name in budget}
    return BudgetState(**known), from_json(carried.get("classes", {}))


def _elapsed_s(carried: Mapping[str, Any], now: datetime) -> float:
    """Seconds since the round before; 0 where there was none, one too long ago, or one after now, by a clock that was set."""
    try:
        elapsed_s = (now - datetime.fromisoformat(carried["at"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0
    return elapsed_s if 0.0 <= elapsed_s <= _LONGEST_S else 0.0
