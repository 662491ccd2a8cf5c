"""Statements for the driver itself belong to their transaction, and fail as all others do."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from service.adapters.postgres.direct import Statement, fetch
from tests.integration.service.conftest import Harness
from tests.integration.service.counting import statements

_ADD = Statement("INSERT INTO policies_tried (name) VALUES (:name) RETURNING name")
_ONE = Statement("SELECT 1 AS one")
_PID = Statement("SELECT pg_backend_pid() AS pid")
_END = Statement("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid")
_SLEEP = Statement("SELECT pg_sleep(60)")


@pytest.fixture
async def table(harness: Harness) -> str:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE policies_tried (name text PRIMARY KEY)"))
    return "policies_tried"


async def _names(harness: Harness, table: str) -> list[str]:
    async with harness.service.database.engine.connect() as connection:
        return [
            row.name for row in await fetch(connection, Statement(f"SELECT name FROM {table} ORDER BY name"))
        ]


async def test_it_is_committed_and_rolled_back_with_the_others(harness: Harness, table: str) -> None:
    async with harness.service.database.engine.begin() as connection:
        (row,) = await fetch(connection, _ADD, name="first")
        await connection.execute(text(f"INSERT INTO {table} VALUES ('second')"))
    assert (row.name, row["name"], tuple(row)) == ("first", "first", ("first",))
    async with harness.service.database.engine.connect() as connection:
        await fetch(connection, _ADD, name="third")
        await connection.rollback()
    assert await _names(harness, table) == ["first", "second"]


async def test_a_conflict_is_the_same_error(harness: Harness, table: str) -> None:
    async with harness.service.database.engine.connect() as connection:
        await fetch(connection, _ADD, name="twice")
        with pytest.raises(IntegrityError, match="policies_tried"):
            await fetch(connection, _ADD, name="twice")
    assert await _names(harness, table) == []


async def test_a_session_that_was_ended_is_given_up(harness: Harness) -> None:
    engine = harness.service.database.engine
    async with engine.connect() as connection:
        (mine,) = await fetch(connection, _PID)
        async with engine.connect() as other:
            await fetch(other, _END, pid=mine.pid)
        with pytest.raises(DBAPIError) as raised:
            await fetch(connection, _ONE)
    assert raised.value.connection_invalidated
    async with engine.connect() as connection:
        (row,) = await fetch(connection, _ONE)
    assert row.one == 1


async def test_one_whose_answer_nobody_waits_for_leaves_the_pool_usable(harness: Harness) -> None:
    engine = harness.service.database.engine
    asked = asyncio.Event()

    async def ask() -> None:
        async with engine.connect() as connection:
            await fetch(connection, _ONE)
            asked.set()
            await fetch(connection, _SLEEP)

    task = asyncio.create_task(ask())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with engine.connect() as connection:
        (row,) = await fetch(connection, _ONE)
    assert row.one == 1


async def test_it_is_counted(harness: Harness) -> None:
    with statements(harness.service.database) as sent:
        async with harness.service.database.engine.connect() as connection:
            await fetch(connection, _ONE)
    assert sent == [_ONE.sql]


def test_names_become_numbers_and_casts_stay() -> None:
    statement = Statement("SELECT :b::int + :a WHERE :b > 0 AND x = CAST(:a_2 AS jsonb)")
    assert statement.sql == "SELECT $1::int + $2 WHERE $1 > 0 AND x = CAST($3 AS jsonb)"
    assert statement.names == ("b", "a", "a_2")
