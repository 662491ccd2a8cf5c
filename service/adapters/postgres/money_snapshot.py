"""What budgets say to a round: caps on dollars per hour, and what jobs may still spend."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from service.adapters.postgres.budgets import PostgresBudgets
from service.adapters.postgres.money_queries import PostgresMoneyQueries
from service.domain.cluster import Cap, Limit
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
