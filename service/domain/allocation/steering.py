"""A policy with a memory: the budget's price of delay follows what was really spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

import numpy as np

from service.domain.allocation.round import Round
from service.domain.policies.budget import Budget, BudgetState, highest_mu, mu_for_present_jobs, steer
from service.domain.policies.policy import Policy
from service.domain.policies.widths import column_prices

_LONGEST_S = 3600.0
"""If no round was held for longer, nothing is known of what was spent meanwhile."""


def steered(policy: Policy, round_: Round) -> tuple[Policy, Mapping[str, Any]]:
    """The policy for this round, and what is to be carried over to the next one. Only a budget carries something."""
    if not isinstance(policy, Budget) or policy.mu_h_per_usd >= 0:
        return policy, {}
    now, before = round_.snapshot.now, round_.snapshot.policy_state
    state = _state(before)
    elapsed_s = _elapsed_s(before, now)
    if elapsed_s > 0:
        configurations = round_.given.configurations
        prices = column_prices(configurations.usd_per_h, configurations.slots)
        state = steer(
            state,
            realised_usd=_usd_per_h(round_, owned=not np.any(configurations.usd_per_h > 0))
            * elapsed_s
            / 3600,
            elapsed_s=elapsed_s,
            budget_usd_per_h=policy.usd_per_h,
            expected_h_per_usd=mu_for_present_jobs(round_.given, policy.usd_per_h),
            highest_h_per_usd=highest_mu(prices),
        )
    carried = {**asdict(state), "at": now.isoformat()}
    return replace(policy, mu_h_per_usd=state.mu_h_per_usd), carried


def _usd_per_h(round_: Round, *, owned: bool) -> float:
    """What all slots that are held cost now; slots themselves where nothing has a price."""
    snapshot = round_.snapshot
    kinds = [snapshot.kind_of(key) for key in snapshot.held]
    return sum(1.0 if owned else max(0.0, snapshot.usd_per_slot_h.get(kind, 0.0)) for kind in kinds)


def _state(carried: Mapping[str, Any]) -> BudgetState:
    known = {one.name: carried[one.name] for one in fields(BudgetState) if one.name in carried}
    return BudgetState(**known)


def _elapsed_s(carried: Mapping[str, Any], now: datetime) -> float:
    """Seconds since the round before; 0 where there was none, or one too long ago."""
    at = carried.get("at")
    elapsed_s = (now - datetime.fromisoformat(at)).total_seconds() if isinstance(at, str) else 0.0
    return elapsed_s if elapsed_s <= _LONGEST_S else 0.0
