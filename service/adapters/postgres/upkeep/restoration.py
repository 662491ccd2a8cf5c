"""Steps that only a database restored from a backup needs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select, text, update

from headway.contract.agents import NodeState
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.core import TERMINAL_SQL, api_processes, commands, events, jobs, nodes
from service.adapters.postgres.tables.upkeep import database_state, leadership
from service.usecases.ports.upkeep import Restoration


class PostgresRestoration(OnSession, Restoration):
    """Restoration in PostgreSQL."""

    async def known_until(self) -> datetime | None:
        # After a restoration this is the moment of the backup, until newer data arrives.
        moments = [
            (await self._session.execute(select(func.max(column)))).scalar_one()
            for column in (
                api_processes.c.seen_at,
                nodes.c.seen_at,
                events.c.at,
                database_state.c.backed_up_at,
            )
        ]
        return max((moment for moment in moments if moment is not None), default=None)

    async def unended_jobs(self) -> list[str]:
        return await self._session.scalars(select(jobs.c.id).where(text(f"NOT ({TERMINAL_SQL})")))

    async def disconnect_nodes(self, message: str, terms_left_out: int) -> int:
        await self._session.execute(
            update(commands).where(commands.c.acknowledged_at.is_(None)).values(acknowledged_at=func.now())
        )
        await self._session.execute(update(leadership).values(term=leadership.c.term + terms_left_out))
        await self._session.execute(api_processes.delete())
        lost = await self._session.execute(update(nodes).values(state=NodeState.LOST, message=message))
        return lost.rowcount

    async def restored(self, known_until: datetime, now: datetime) -> None:
        await self._session.execute(update(database_state).values(backed_up_at=known_until, restored_at=now))
