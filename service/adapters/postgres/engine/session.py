"""Transactions on the connections of the pool, and the two ways to send SQL in them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import CursorResult, Executable, Row, Table, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_T = TypeVar("_T")
_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


class FetchedRow(asyncpg.Record):  # type: ignore[misc]  # asyncpg has no types
    """Row with its columns as attributes, like the rows of SQLAlchemy."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Statement:
    """SQL with `:name` in place of values. JSON values are passed as text and returned as objects."""

    def __init__(self, sql: str) -> None:
        names: list[str] = []

        def number(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        self.sql = _NAME.sub(number, sql)
        self.names = tuple(names)


def columns_of(table: Table) -> str:
    """Return all columns of a table as a list for a SELECT."""
    return ", ".join(f"{table.name}.{column.name}" for column in table.columns)


class Session:
    """One connection of the pool, with at most one open transaction.

    The first statement begins a transaction. All methods raise the errors of asyncpg. If the caller of a
    method is cancelled, the connection is closed, because its answer is still to come.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        sync = connection.sync_connection
        assert sync is not None, "the connection is open"
        self._connection = connection
        self._driver: Any = sync.connection.driver_connection

    async def fetch(self, statement: Statement, **values: Any) -> list[FetchedRow]:
        """Run a statement and return its rows."""
        await self._begin()
        return await self.fetch_alone(statement, **values)

    async def fetch_alone(self, statement: Statement, **values: Any) -> list[FetchedRow]:
        """Run a statement as its own transaction, unless one is open, and return its rows.

        Without BEGIN and COMMIT it takes one round trip instead of three, and is as atomic and durable. It has
        committed when its rows arrive, so nothing that follows can undo it.
        """
        numbered = [values[name] for name in statement.names]
        return await self._answer(self._driver.fetch(statement.sql, *numbered, record_class=FetchedRow))

    async def execute(
        self, expression: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run an expression of SQLAlchemy and return its result."""
        await self._begin()
        with driver_errors():
            return await self._connection.execute(expression, values)

    async def rows(
        self, expression: Executable, values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """Run an expression of SQLAlchemy and return its rows."""
        return (await self.execute(expression, values)).all()

    async def first(self, expression: Executable, values: Mapping[str, Any] | None = None) -> Row[Any] | None:
        """Run an expression of SQLAlchemy and return its first row, or None if it has none."""
        return (await self.execute(expression, values)).first()

    async def scalars(self, expression: Executable, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Run an expression of SQLAlchemy and return its first column."""
        return list((await self.execute(expression, values)).scalars())

    async def commit(self) -> None:
        """Commit the open transaction, if any."""
        if self._driver.is_in_transaction():
            await self._answer(self._driver.execute("COMMIT"))

    async def rollback(self) -> None:
        """Undo the open transaction, if any. If that fails, close the connection, so that it leaves the pool."""
        if self._driver.is_in_transaction() and not self._driver.is_closed():
            try:
                await self._driver.execute("ROLLBACK")
            except BaseException as error:
                await self._connection.invalidate(error)
                raise

    async def _begin(self) -> None:
        if not self._driver.is_in_transaction():
            await self._answer(self._driver.execute("BEGIN"))

    async def _answer(self, answer: Awaitable[_T]) -> _T:
        try:
            return await answer
        except asyncpg.InternalClientError as error:
            # The server died in the middle of an exchange, and the driver does not know where it stands.
            await self._connection.invalidate(error)
            raise
        except Exception:
            raise
        except BaseException as error:  # cancelled
            await self._connection.invalidate(error)
            raise


class OnSession:
    """Base of adapters that work in the transaction of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session


@asynccontextmanager
async def open_session(engine: AsyncEngine) -> AsyncIterator[Session]:
    """Yield a session on a connection of the engine's pool. A transaction left open is rolled back.

    `engine` must be in autocommit mode, so that transactions are begun and ended by the session alone.
    """
    with driver_errors():
        async with engine.connect() as connection:
            session = Session(connection)
            try:
                yield session
            finally:
                await session.rollback()


@contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the driver's own error in place of SQLAlchemy's error about it."""
    try:
        yield
    except DBAPIError as error:
        cause = None if error.orig is None else error.orig.__cause__
        raise (cause or error) from None


def replace_closed_connections(engine: AsyncEngine) -> None:
    """Replace connections that were closed while they lay in the pool, at the time they are taken from it."""
    event.listen(engine.sync_engine, "checkout", _refuse_closed)


def _refuse_closed(_: Any, record: Any, __: Any) -> None:
    if record.driver_connection.is_closed():
        raise DisconnectionError("closed while it lay in the pool")
