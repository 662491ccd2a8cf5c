"""What money says to a round: caps on dollars per hour, what jobs may still spend, and what was spent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from service.adapters.postgres.budgets import PostgresBudgets
from service.adapters.postgres.money_queries import PostgresMoneyQueries
from service.domain.allocation.steering import asked_since
from service.domain.cluster import Cap, Limit, PolicySetting, Spent
from service.domain.policies.budget import Budget
from service.domain.rental.budgets import caps_of
from service.usecases.standing import standings


async def caps_and_limits(
    connection: AsyncConnection, now: datetime
) -> tuple[tuple[Cap, ...], dict[str, Limit]]:
    """Hard budgets as caps, and by job id what is left of the jobs' own money."""
    queries = PostgresMoneyQueries(connection)
    found = await standings(PostgresBudgets(connection), queries, now, lambda budget: budget.hard)
    limited = await queries.limited_jobs()
    spend = await queries.job_spend([one.job_id for one in limited]) if limited else {}
    limits = {
        one.job_id: Limit(
            left_usd=max(0.0, one.max_usd - (spend[one.job_id].usd if one.job_id in spend else 0.0)),
            on_budget=one.on_budget,
        )
        for one in limited
    }
    return caps_of(found), limits


async def spent_for(
    connection: AsyncConnection, policy: PolicySetting, carried: Mapping[str, Any], now: datetime
) -> Spent | None:
    """What the ledger has of everything, for the policy that is steered by it; None for every other."""
    if policy.name != Budget.name:
        return None
    since = asked_since(carried, now)
    return Spent(since, await PostgresMoneyQueries(connection).spent_usd(since, project=None))
