"""Both ways to send SQL belong to one transaction and fail in the same way."""

from __future__ import annotations

import asyncio

import pytest
from asyncpg import (
    AdminShutdownError,
    ConnectionDoesNotExistError,
    InterfaceError,
    InternalClientError,
    UniqueViolationError,
)
from sqlalchemy import Executable, text

from service.adapters.postgres.database import Database
from service.adapters.postgres.engine.session import Session, Statement
from service.domain.shared.errors import Unavailable
from tests.integration.service.conftest import Harness
from tests.integration.service.counting import statements

_ADD = Statement("INSERT INTO policies_tried (name) VALUES (:name) RETURNING name")
_NAMES = Statement("SELECT name FROM policies_tried ORDER BY name")
_ONE = Statement("SELECT 1 AS one")
_PID = Statement("SELECT pg_backend_pid() AS pid")
_END = Statement("SELECT pg_terminate_backend(:pid, 5000)")
_SLEEP = Statement("SELECT pg_sleep(60)")


@pytest.fixture
async def database(harness: Harness) -> Database:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE policies_tried (name text PRIMARY KEY)"))
    return harness.service.database


def add(name: str) -> Executable:
    return text("INSERT INTO policies_tried VALUES (:name)").bindparams(name=name)


async def names(database: Database) -> list[str]:
    async with database.session() as session:
        return [row.name for row in await session.fetch(_NAMES)]


async def pid_of(session: Session) -> int:
    (row,) = await session.fetch(_PID)
    return int(row.pid)


async def end(database: Database, pid: int) -> None:
    async with database.session() as session:
        await session.fetch(_END, pid=pid)


async def test_both_ways_commit_and_roll_back_together(database: Database) -> None:
    async with database.session() as session:
        (row,) = await session.fetch(_ADD, name="first")
        await session.execute(add("second"))
        await session.commit()
        await session.execute(add("third"))
        await session.fetch(_ADD, name="fourth")
        await session.rollback()
        await session.execute(add("fifth"))
        await session.commit()
        await session.execute(add("left open"))
    assert (row.name, row["name"], tuple(row)) == ("first", "first", ("first",))
    assert await names(database) == ["fifth", "first", "second"]


async def test_a_statement_alone_has_committed_unless_a_transaction_is_open(database: Database) -> None:
    async with database.session() as session:
        await session.fetch_alone(_ADD, name="alone")
        await session.fetch(_ONE)
        await session.fetch_alone(_ADD, name="not alone")
    assert await names(database) == ["alone"]


async def test_both_ways_raise_the_error_of_the_driver(database: Database) -> None:
    async with database.session() as session:
        await session.fetch(_ADD, name="twice")
        with pytest.raises(UniqueViolationError) as raised:
            await session.fetch(_ADD, name="twice")
        await session.rollback()
        await session.execute(add("twice"))
        with pytest.raises(UniqueViolationError) as again:
            await session.execute(add("twice"))
    assert raised.value.constraint_name == again.value.constraint_name == "policies_tried_pkey"
    assert await names(database) == []


async def test_a_block_that_fails_leaves_no_transaction_to_the_next(database: Database) -> None:
    async def fail() -> None:
        async with database.session() as session:
            await session.fetch(_ADD, name="first")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await names(database) == []


async def test_connections_that_were_ended_in_the_pool_are_replaced(database: Database) -> None:
    async with database.session() as one, database.session() as two, database.session() as three:
        pids = [await pid_of(session) for session in (one, two, three)]
    async with database.session() as session:
        last = await pid_of(session)
        for pid in pids:
            if pid != last:
                await session.fetch(_END, pid=pid)
    async with database.session() as one, database.session() as two, database.session() as three:
        assert not {await pid_of(session) for session in (one, two, three)} & (set(pids) - {last})


@pytest.mark.parametrize("cold", [False, True])
async def test_a_session_that_was_ended_is_given_up(database: Database, *, cold: bool) -> None:
    async with database.session() as session:
        await end(database, await pid_of(session))
        with pytest.raises((AdminShutdownError, ConnectionDoesNotExistError, InterfaceError)):
            await (session.execute(add("lost")) if cold else session.fetch(_ADD, name="lost"))
    assert await names(database) == []


@pytest.mark.parametrize("cold", [False, True])
async def test_a_cancelled_statement_leaves_the_pool_usable(database: Database, *, cold: bool) -> None:
    asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with database.session() as session:
            await session.fetch(_ADD, name="lost")
            asked.set_result(await pid_of(session))
            await (session.execute(text(_SLEEP.sql)) if cold else session.fetch(_SLEEP))

    task = asyncio.create_task(ask())
    pid = await asked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.session() as session:
        assert await pid_of(session) != pid
    assert await names(database) == []


async def test_a_server_that_dies_in_the_middle_of_an_exchange_does_not_answer(database: Database) -> None:
    with pytest.raises(Unavailable):
        async with database.begin():
            raise InternalClientError("cannot switch to state 12; another operation (2) is in progress")


async def test_both_ways_are_counted(database: Database) -> None:
    with statements(database) as sent:
        async with database.session() as session:
            await session.fetch(_ONE)
            await session.execute(text("SELECT 2"))
    assert sorted(sent) == [_ONE.sql, "SELECT 2"]


def test_names_become_numbers_and_casts_stay() -> None:
    statement = Statement("SELECT :b::int + :a WHERE :b > 0 AND x = CAST(:a_2 AS jsonb)")
    assert statement.sql == "SELECT $1::int + $2 WHERE $1 > 0 AND x = CAST($3 AS jsonb)"
    assert statement.names == ("b", "a", "a_2")
