"""Statements that are sent many times a second, given to the driver as they are.

An expression that is built, compiled and read back costs a process ten times what the driver takes for the same statement, and a
service that hears thousands of agents is bound by that. So what is sent for every report, start and read is plain SQL. It
belongs to the transaction of its connection like everything else, and fails with the same errors.
"""

from __future__ import annotations

import re
from typing import Any

import asyncpg
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util import greenlet_spawn


class Row(asyncpg.Record):  # type: ignore[misc]  # which says nothing of its types
    """A row whose columns are attributes, as everywhere else."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Statement:
    """SQL with `:name` where values go. JSON goes in as text; it comes out as objects."""

    def __init__(self, sql: str) -> None:
        names: list[str] = []

        def number(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        self.sql = _NAME.sub(number, sql)
        self.names = tuple(names)


_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


def columns_of(table: Table) -> str:
    """All columns of a table, as a statement lists them."""
    return ", ".join(f"{table.name}.{column.name}" for column in table.columns)


async def fetch(connection: AsyncConnection, statement: Statement, **values: Any) -> list[Row]:
    """The rows of a statement.

    Raises:
        DBAPIError: as `connection.execute` does.
    """
    numbered = [values[name] for name in statement.names]
    sync = connection.sync_connection
    assert sync is not None, "the connection is open"
    if not sync.in_transaction():
        sync.begin()  # sends nothing yet
    pooled = sync.connection
    for note in sync.dispatch.before_cursor_execute:
        note(sync, None, statement.sql, numbered, None, False)  # noqa: FBT003
    adapted: Any = pooled.dbapi_connection
    driver: Any = pooled.driver_connection
    try:
        if adapted._transaction is None:  # noqa: SLF001 - what its own cursors do
            await adapted._start_transaction()  # noqa: SLF001
        rows: list[Row] = await driver.fetch(statement.sql, *numbered, record_class=Row)
    except Exception as error:
        await greenlet_spawn(_raise_as_usual, sync, adapted, error, statement.sql)
        raise
    except BaseException as error:  # nobody waits for the answer any more
        await greenlet_spawn(sync.invalidate, error)
        raise
    return rows


def _raise_as_usual(sync: Any, adapted: Any, error: Exception, statement: str) -> None:
    """Raise what a cursor would have raised; a connection that broke is given up, and the pool's others with it."""
    try:
        adapted._handle_exception(error)  # noqa: SLF001
    except Exception as translated:  # noqa: BLE001 - it is judged there
        sync._handle_dbapi_exception(translated, statement, None, None, None)  # noqa: SLF001
