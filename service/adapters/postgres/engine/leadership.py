"""Leader election of the schedulers.

It uses an advisory lock on a separate connection, and a row with the leader and its term.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

import asyncpg
import structlog

from service.adapters.postgres.engine.session import Session, Statement
from service.domain.shared.errors import Superseded, Unavailable
from service.usecases.ports.transactions import Leadership

log = structlog.get_logger()

BOUND_S: Final = 10.0
"""Time without a renewal after which a leader loses its leadership."""
RENEW_EVERY_S: Final = 2.0
_LOCK: Final = 0x4EAD_3A9
_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 2.0

_NEXT_TERM = """
    INSERT INTO leadership AS known (id, term, holder, renewed_at) VALUES (1, 1, $1, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET term = known.term + 1, holder = $1, renewed_at = clock_timestamp()
    RETURNING term
"""
_RENEW = "UPDATE leadership SET renewed_at = clock_timestamp() WHERE id = 1 AND term = $1 AND holder = $2"
_WHO_LEADS = "SELECT term, holder, renewed_at FROM leadership WHERE id = 1"
_LOCK_HOLDER = """
    SELECT activity.pid, activity.application_name
    FROM pg_locks AS locks JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
    WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
      AND locks.classid = 0 AND locks.objid = $1::bigint::oid
      AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND (pid = $1 OR (application_name = $2 AND $2 <> ''))
"""

_WROTE_NOTHING = Statement("SELECT pg_current_xact_id_if_assigned() IS NULL AS nothing")
_NEWEST = Statement("SELECT term, holder FROM leadership FOR SHARE")


async def check_term(session: Session, term: int, holder: str) -> None:
    """Let a transaction commit only if `term` is the newest term, and `holder` has it. Call it last in the transaction.

    After a failover that lost the beginning of a term, another process can get a term of the same number.

    The row stays locked in share mode until the commit, so that no newer term can begin in between. A
    transaction that has written nothing passes: its result may be late, and a read-only transaction could not
    lock the row.

    Raises:
        Superseded: a newer term has begun.
    """
    (wrote,) = await session.fetch(_WROTE_NOTHING)
    if wrote.nothing:
        return
    newest = next(((row.term, row.holder) for row in await session.fetch(_NEWEST)), (None, None))
    if newest != (term, holder):
        raise Superseded(
            f"another scheduler leads, in term {newest[0]}; the changes of term {term} were not written"
        )


class PostgresLeadership(Leadership):
    """Leader election over PostgreSQL.

    The lock lives as long as its connection, and the connection of a hanging process stays open. The leader
    therefore also renews its row. A process that sees no renewal for `bound_s` ends all connections of the
    leader and takes the lock.

    Args:
        url: the database. A pooler that shares connections between transactions would share the lock.
        holder: the `application_name` of every connection of this process.
        bound_s: time without a renewal after which the leader loses its leadership.
        renew_every_s: interval between two renewals.
        clock_s: a monotonic clock, in seconds. No wall clock decides who leads.
    """

    def __init__(
        self,
        url: str,
        holder: str,
        *,
        bound_s: float = BOUND_S,
        renew_every_s: float = RENEW_EVERY_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._holder = holder
        self._bound_s = bound_s
        self._renew_every_s = renew_every_s
        self._clock_s = clock_s
        self._connection: asyncpg.Connection | None = None
        self._gone = asyncio.Event()
        self._term = 0
        self._seen: tuple[tuple[int, datetime] | None, float] | None = None
        """The latest distinct content of the row (None: no row), and the time at which it was first seen."""

    async def acquire(self) -> int | None:
        try:
            async with asyncio.timeout(self._bound_s):
                return await self._acquire()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            await self.resign()
            raise Unavailable(f"the database does not answer ({type(error).__name__})") from error

    async def _acquire(self) -> int | None:
        connection = await self._connected()
        asked_s = self._clock_s()
        before = await connection.fetchrow(_WHO_LEADS)
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
            await self._end_if_stale(connection, before, asked_s)
            return None
        try:
            # A hanging commit of the previous leader may hold the row. Its time is up.
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{int(self._bound_s * 200)}ms'")
                term: int = await connection.fetchval(_NEXT_TERM, self._holder)
        except asyncpg.LockNotAvailableError:
            if before is not None and before["holder"] != self._holder:
                await self._end_sessions(connection, None, before["holder"])
            await self.resign()
            return None
        self._term = term
        return term

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(
                self._url, timeout=_CONNECT_S, server_settings={"application_name": self._holder}
            )
            self._gone = gone = asyncio.Event()
            self._connection.add_termination_listener(lambda _: gone.set())
        return self._connection

    async def _end_if_stale(
        self, connection: asyncpg.Connection, row: asyncpg.Record | None, asked_s: float
    ) -> None:
        """End the leader's connections if its row has not changed for too long, by this process's own clock.

        The age of the row counts up to the query (`asked_s`). Time that this process itself spent hanging
        since then does not count.
        """
        content = None if row is None else (row["term"], row["renewed_at"])
        if self._seen is None or self._seen[0] != content:
            self._seen = (content, self._clock_s())
        if asked_s - self._seen[1] < self._bound_s:
            return
        for holder in await connection.fetch(_LOCK_HOLDER, _LOCK):
            await self._end_sessions(connection, holder["pid"], holder["application_name"])
        self._seen = None

    async def _end_sessions(self, connection: asyncpg.Connection, pid: int | None, holder: str) -> None:
        """End all connections of a process, so that no row stays locked by its open transaction."""
        ended = await connection.fetchval(_END_SESSIONS, pid, holder)
        log.warning("leader_deposed", holder=holder, connections=ended, silent_s=self._bound_s)

    async def lost(self) -> str:
        connection = self._connection
        if connection is None:
            return "it has resigned"
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), self._renew_every_s)
                return "the connection that held the lock is gone"
            try:
                async with asyncio.timeout(self._bound_s - self._renew_every_s):
                    done = await connection.execute(_RENEW, self._term, self._holder)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                return f"its term could not be renewed in time ({type(error).__name__})"
            if done != "UPDATE 1":
                return f"a newer term than {self._term} has begun"

    async def resign(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=_CLOSE_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()
