"""Databases with the schema that serve one test after the other, of a server that all processes of a run copy."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.database import Database
from service.adapters.postgres.engine.schema import migrate

TEMPLATE = "headway_template"
"""The database that the migrations have made."""

_END_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_SHAPE = (
    "SELECT (SELECT md5(string_agg(concat(oid, relname, reloptions), ' ' ORDER BY oid)) FROM pg_class WHERE oid >= $1),"
    " (SELECT md5(string_agg(concat(attrelid, attnum, xmin), ' ' ORDER BY attrelid, attnum)) FROM pg_attribute"
    "  WHERE attrelid >= $1),"
    " (SELECT md5(string_agg(concat(oid, xmin), ' ' ORDER BY oid)) FROM pg_constraint WHERE oid >= $1),"
    " (SELECT md5(string_agg(concat(oid, xmin), ' ' ORDER BY oid)) FROM pg_trigger WHERE oid >= $1)"
)
_FIRST_OID = 16384
"""PostgreSQL's own objects have lower numbers."""
_USED = (
    "SELECT relname::text FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0"
)

_RESTART_NUMBERS = "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence"


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents that a copy of the template has before its first test."""

    shape: tuple[str, ...]
    """Hashes of tables, columns, constraints and triggers, which differ after any change of the schema."""
    rows: dict[str, str]
    """The rows of each table that has some, as JSON."""


def migrated_server(run: Path, data: Path) -> EmbeddedPostgres:
    """Return a server over `data`, not yet started, which has the database `TEMPLATE`.

    The first process of a run makes it, in seconds, and leaves it in the folder `run`; the others copy it.
    """
    server = EmbeddedPostgres(data, durable=False)
    ready = run / "migrated"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (run / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            with server:
                asyncio.run(_migrate(server.create_database(TEMPLATE)))
            server.cluster.rename(ready)
    subprocess.run(["cp", "-Rp", ready, server.cluster], check=True)  # with its owner, too
    return server


async def _migrate(url: str) -> None:
    async def silent(*_: object) -> None:
        """No wake-up is sent."""

    database = Database(url, silent)
    await migrate(database.engine)
    await database.close()


class Databases:
    """Copies of a template database. Removing what a test left is far quicker than copying the template again.

    A copy whose schema a test has changed is not used again.
    """

    def __init__(self, server: EmbeddedPostgres, template: str) -> None:
        self._server = server
        self._template = template
        self._copies = 0
        self._free: list[tuple[str, _Contents]] = []
        self.loop = asyncio.new_event_loop()  # `asyncio.run` would take away the loop of the tests

    def close(self) -> None:
        """End the loop."""
        self.loop.close()

    @contextmanager
    def borrow(self) -> Iterator[str]:
        """Yield the URL of a database that is like the template."""
        if self._free:
            url, contents = self._free.pop()
        else:
            self._copies += 1
            url = self._server.create_database(f"test_{self._copies}", template=self._template)
            contents = self.loop.run_until_complete(_read(url))
        yield url
        if self.loop.run_until_complete(_restore(url, contents)):
            self._free.append((url, contents))


async def _read(url: str) -> _Contents:
    connection = await asyncpg.connect(url)
    try:
        shape = tuple(await connection.fetchrow(_SHAPE, _FIRST_OID))
        used = [row[0] for row in await connection.fetch(_USED)]
        rows = {one: await connection.fetchval(f'SELECT json_agg(t)::text FROM "{one}" t') for one in used}
        return _Contents(shape, {name: found for name, found in rows.items() if found is not None})
    finally:
        await connection.close()


async def _restore(url: str, contents: _Contents) -> bool:
    """Make the database as it was, and return whether that was possible."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_END_CONNECTIONS)
        if tuple(await connection.fetchrow(_SHAPE, _FIRST_OID)) != contents.shape:
            return False
        used = [f'"{row[0]}"' for row in await connection.fetch(_USED)]
        await connection.execute(
            "SET session_replication_role = replica"
        )  # neither triggers nor foreign keys
        async with connection.transaction():
            for table in used:
                await connection.execute(f"DELETE FROM {table}")
        await connection.execute(
            f"VACUUM {', '.join(used)}"
        )  # the next test finds files as small as new ones
        async with connection.transaction():
            await connection.execute(_RESTART_NUMBERS)
            for name, rows in contents.rows.items():
                statement = f'INSERT INTO "{name}" SELECT * FROM json_populate_recordset(NULL::"{name}", $1)'
                await connection.execute(statement, rows)
        return True
    finally:
        await connection.close()
