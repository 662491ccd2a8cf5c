"""Delete what is over."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import and_, delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from service.adapters.postgres.ledger_tables import budget_notices, charges, leases
from service.adapters.postgres.money_tables import machines
from service.adapters.postgres.tables import (
    api_processes,
    bundles,
    commands,
    jobs,
    metrics,
    rounds,
    simulations,
    slot_grants,
)
from service.domain.rental.machines import ENDED

_COMMANDS_KEPT = timedelta(days=1)
_ROUNDS_KEPT = timedelta(days=7)
_SIMULATIONS_KEPT = timedelta(days=7)
_PROCESSES_KEPT = timedelta(hours=1)
MONEY_KEPT = timedelta(days=400)
"""Longer than the longest period of a budget, and than a year's bill is asked about."""
_BATCH = 500


class PostgresRetention:
    """Implements `usecases.ports.Retention`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def delete_old(self, now: datetime, keep_days: int) -> list[str]:
        """Delete ended jobs with all that hangs on them, and short-lived rows. At most a batch of jobs."""
        kept_from = now - timedelta(days=keep_days)
        await self._connection.execute(
            delete(commands).where(commands.c.acknowledged_at < now - _COMMANDS_KEPT)
        )
        await self._connection.execute(delete(rounds).where(rounds.c.at < now - _ROUNDS_KEPT))
        await self._connection.execute(
            delete(simulations).where(simulations.c.finished_at < now - _SIMULATIONS_KEPT)
        )
        await self._connection.execute(delete(metrics).where(metrics.c.at < kept_from))
        await self._connection.execute(delete(slot_grants).where(slot_grants.c.released_at < kept_from))
        await self._connection.execute(
            delete(api_processes).where(api_processes.c.seen_at < now - _PROCESSES_KEPT)
        )
        await self._delete_money(now - max(MONEY_KEPT, timedelta(days=keep_days)))
        old = select(jobs.c.id).where(jobs.c.finished_at < kept_from).limit(_BATCH)
        gone = await self._connection.execute(
            delete(jobs).where(jobs.c.id.in_(old.scalar_subquery())).returning(jobs.c.id)
        )
        return list(gone.scalars())

    async def _delete_money(self, before: datetime) -> None:
        """Leases with their charges, hours of those that go on, machines, and what was told of budgets."""
        await self._connection.execute(delete(leases).where(leases.c.to_at < before))
        await self._connection.execute(delete(charges).where(charges.c.hour < before))
        await self._connection.execute(delete(budget_notices).where(budget_notices.c.given_at < before))
        ended = and_(machines.c.state.in_(ENDED), machines.c.state_since < before)
        await self._connection.execute(delete(machines).where(ended))

    async def unused_bundles(self, before: datetime) -> list[str]:
        """Digests of bundles uploaded before a moment that no job refers to; their rows are deleted."""
        used = text("NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec->>'bundle' = bundles.digest)")
        gone = await self._connection.execute(
            delete(bundles).where(bundles.c.created_at < before, used).returning(bundles.c.digest)
        )
        return list(gone.scalars())
