"""Migration of the schema while the service runs, and the check that this version can work with the schema.

Every migration is a separate transaction. A migration that does not get a table's lock soon gives up, so that
the statements that queue behind it can go on, and is retried later. Revisions are numbered: a later revision
is greater.
"""

from __future__ import annotations

import asyncio
import time
from functools import cache
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.adapters.postgres.tables.upkeep import database_state
from service.domain.shared.errors import Unavailable

log = structlog.get_logger()

_INSTALLED = Path(__file__).parents[3] / "migrations"
_CHECKOUT = Path(__file__).parents[4] / "migrations"

LOCK_TIMEOUT_S = 2.0
"""Longest wait of a migration for a table lock. Statements that queue behind it wait at most as long."""
STATEMENT_TIMEOUT_S = 60.0
"""Longest duration of a migration's statement, and so of its table locks."""
PATIENCE_S = 300.0
_CONNECT = {
    "timeout": 5,
    "server_settings": {  # RESET returns to these limits after an index was built without them
        "application_name": "headway migrate",
        "lock_timeout": f"{LOCK_TIMEOUT_S:g}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT_S:g}s",
    },
}
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_TURN_EVERY_S = 0.2
_LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"

_TRY_TURN = text("SELECT pg_try_advisory_lock(hashtext('headway-migrations'))")
_OPEN_LONGEST = text(
    "SELECT pid, extract(epoch FROM now() - xact_start)::int AS open_s, left(query, 80) AS query"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    " ORDER BY xact_start LIMIT 3"
)


def alembic_config() -> Config:
    """Return Alembic's configuration, with the scripts of the package or of the checkout."""
    config = Config()
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    config.set_main_option("script_location", str(folder))
    return config


@cache
def head_revision() -> str:
    """Return the schema revision that this version was written for."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head() or ""


async def migrate(
    engine: AsyncEngine,
    revision: str = "head",
    *,
    config: Config | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Run every missing migration up to `revision`.

    Two migrators at once take turns. A schema of a newer version stays as it is.

    Raises:
        Unavailable: a table was in use for all of `patience_s`, or a statement took too long. Completed
            migrations stay and no migration is half done, so the caller can retry.
    """
    # Without the service's limit on a statement: building an index of a large table takes longer.
    own = create_async_engine(engine.url, poolclass=NullPool, connect_args=_CONNECT)
    try:
        async with own.connect() as connection:
            await _take_turn(connection)
            scripts = config or alembic_config()
            newest = ScriptDirectory.from_config(scripts).get_current_head() or ""
            if await connection.run_sync(_revision) <= newest:
                await connection.rollback()
                await _run(connection, scripts, revision, patience_s)
    finally:
        await own.dispose()


async def current_revision(engine: AsyncEngine) -> str:
    """Return the revision of the database; empty if no migration ever ran."""
    async with engine.connect() as connection:
        return await connection.run_sync(_revision)


async def schema_problem(engine: AsyncEngine) -> str | None:
    """Return the reason why this version cannot work with the schema, with the remedy, or None if it can.

    A schema that is newer than this version is fine as long as its migrations only added something.
    """
    needed = head_revision()
    async with engine.connect() as connection:
        found = await connection.run_sync(_revision)
        if found < needed:
            return (
                f"the database schema is {f'at revision {found}' if found else 'missing'}, and this version needs "
                f"{needed}; run `python -m service migrate`"
            )
        own = (await connection.execute(select(database_state))).one()
        oldest: str = own.oldest_revision
    if own.backed_up_at is not None and own.restored_at is None:
        return "the database was loaded from a backup, but not to the end; run `python -m service restored`"
    if oldest > needed:
        return (
            f"the database schema is for versions of revision {oldest} and newer, and this one is of {needed}; "
            "start the version of the service that migrated it"
        )
    return None


def _revision(connection: Connection) -> str:
    return MigrationContext.configure(connection).get_current_revision() or ""


async def _take_turn(connection: AsyncConnection) -> None:
    """Wait until no other migrator runs.

    It polls, because a session that waits inside a statement holds a snapshot, and an online index build
    would in turn wait for that snapshot.
    """
    while not (await connection.execute(_TRY_TURN)).scalar_one():
        await connection.rollback()
        await asyncio.sleep(_TURN_EVERY_S)
    await connection.commit()


async def _run(connection: AsyncConnection, config: Config, revision: str, patience_s: float) -> None:
    def upgrade(sync: Connection) -> None:
        config.attributes["connection"] = sync
        command.upgrade(config, revision)

    give_up_s = time.monotonic() + patience_s
    pause_s = _PAUSE_S
    while True:
        await connection.execute(text("RESET ALL"))  # an interrupted index build leaves the limits lifted
        await connection.commit()
        try:
            await connection.run_sync(upgrade)
            await connection.commit()
        except DBAPIError as error:
            await connection.rollback()
            state = getattr(error.orig, "sqlstate", None)
            at = await connection.run_sync(_revision)
            if state == _QUERY_CANCELED:
                raise Unavailable(_timeout_message(at)) from error
            if state != _LOCK_NOT_AVAILABLE:
                raise
            holders = await _open_transactions(connection)
            if time.monotonic() + pause_s > give_up_s:
                raise Unavailable(_lock_message(at, patience_s, holders)) from error
            log.warning("migration_waits", after=at, again_in_s=pause_s, open_transactions=holders)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            return


async def _open_transactions(connection: AsyncConnection) -> str:
    rows = (await connection.execute(_OPEN_LONGEST)).all()
    await connection.rollback()
    return "; ".join(f"process {row.pid}, open for {row.open_s} s: {row.query}" for row in rows)


def _lock_message(at: str, patience_s: float, holders: str) -> str:
    return (
        f"the migration after revision {at or 'none'} did not get a table's lock within {patience_s:.0f} s, and nothing of "
        f"it was done. Transactions that were open longest: {holders or 'none any more'}. End them "
        "(`SELECT pg_terminate_backend(PID)`) or wait for their end, and run `python -m service migrate` again"
    )


def _timeout_message(at: str) -> str:
    return (
        f"a statement of the migration after revision {at or 'none'} took longer than {STATEMENT_TIMEOUT_S:.0f} s and was "
        "cancelled, so that it does not block the service; nothing was changed. Run `python -m service migrate` again when the "
        "database is less busy"
    )
