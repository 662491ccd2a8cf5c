"""Monetary inputs of a scheduling round: caps in dollars per hour, remaining money of jobs, and spending."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from service.adapters.postgres.engine.session import Session
from service.adapters.postgres.money.views import PostgresSpending
from service.domain.allocation.inputs.policy_state import asked_since
from service.domain.cluster.snapshot import Cap, LedgerTotals, Limit
from service.domain.rental.budgets import caps_of
from service.usecases.money.budget_state import budget_usages


async def caps_and_limits(session: Session, now: datetime) -> tuple[tuple[Cap, ...], dict[str, Limit]]:
    """Return the hard budgets as caps, and the remaining money of jobs with a cost limit, by job id."""
    spending = PostgresSpending(session)
    found = await budget_usages(spending, now, lambda budget: budget.hard)
    limited = await spending.limited_jobs()
    spend = await spending.job_spend([one.job_id for one in limited]) if limited else {}
    limits = {
        one.job_id: Limit(
            left_usd=max(0.0, one.max_usd - (spend[one.job_id].usd if one.job_id in spend else 0.0)),
            on_budget=one.on_budget,
        )
        for one in limited
    }
    return caps_of(found), limits


async def spent_for(session: Session, carried: Mapping[str, Any]) -> LedgerTotals | None:
    """Return the total spending since the hour that a policy with state asks for; None without state."""
    since = asked_since(carried)
    if since is None:
        return None
    return LedgerTotals(since, await PostgresSpending(session).spent_usd(since, project=None))
