"""The schedulers' election: a Postgres advisory lock held by one connection."""

from __future__ import annotations

import asyncio

import asyncpg

from service.domain.errors import Unavailable

_LOCK = 0x4EAD_3A9


class PostgresLeadership:
    """Implements `loops.leader.Leadership`. The lock lives as long as the connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection | None = None
        self._gone = asyncio.Event()

    async def acquire(self) -> bool:
        """Whether this process is the leader now."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._url, timeout=5)
                self._gone = asyncio.Event()
                gone = self._gone
                self._connection.add_termination_listener(lambda _: gone.set())
            return bool(await self._connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise Unavailable(f"the database does not answer ({type(error).__name__})") from error

    async def lost(self) -> None:
        """Returns when the connection, and with it the lock, is gone."""
        await self._gone.wait()

    async def close(self) -> None:
        """Give the lock back."""
        if self._connection is not None and not self._connection.is_closed():
            await self._connection.close(timeout=2)
