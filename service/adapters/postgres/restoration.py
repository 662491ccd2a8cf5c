"""What only a database that was brought back from a backup is asked for."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from service.adapters.postgres.reliability_tables import leadership
from service.adapters.postgres.schema_tables import database_state
from service.adapters.postgres.tables import TERMINAL_SQL, api_processes, commands, events, jobs, nodes


class PostgresRestoration:
    """Implements `usecases.restore.Restoration`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def known_until(self) -> datetime | None:
        """The last moment that anything is from. Once it was restored, that stays the moment that it was restored to,
        until there is news.
        """
        moments = [
            (await self._connection.execute(select(func.max(column)))).scalar_one()
            for column in (
                api_processes.c.seen_at,
                nodes.c.seen_at,
                events.c.at,
                database_state.c.backed_up_at,
            )
        ]
        return max((moment for moment in moments if moment is not None), default=None)

    async def unended_jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        found = await self._connection.execute(select(jobs.c.id).where(text(f"NOT ({TERMINAL_SQL})")))
        return list(found.scalars())

    async def forget_field(self, message: str, terms_left_out: int) -> int:
        """No node is known to be alive, no command is under way, and who led leads no longer."""
        await self._connection.execute(
            update(commands).where(commands.c.acknowledged_at.is_(None)).values(acknowledged_at=func.now())
        )
        await self._connection.execute(update(leadership).values(term=leadership.c.term + terms_left_out))
        await self._connection.execute(api_processes.delete())
        lost = await self._connection.execute(update(nodes).values(state=NodeState.LOST, message=message))
        return lost.rowcount

    async def restored(self, known_until: datetime, now: datetime) -> None:
        """The database may be used again."""
        await self._connection.execute(
            update(database_state).values(backed_up_at=known_until, restored_at=now)
        )
