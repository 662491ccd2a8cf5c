"""`Commands`: the outbox gives each command to one deliverer at a time, until it is acknowledged."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest_asyncio

from headway.contract.agents import COMMANDS, StopCommand
from service.adapters.postgres.database import Database
from service.usecases.ports.rounds import PendingCommand
from tests.conformance.conftest import NOW, job_of, node_of, store

AGAIN_S = 5.0


def stop(number: int, job: str = "j1") -> StopCommand:
    return StopCommand(
        command_id=f"c{number:04}", job_id=job, generation=number, mode="checkpoint", grace_s=1.5
    )


@pytest_asyncio.fixture
async def stored(database: Database) -> AsyncIterator[Database]:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), node_of("n2"), job_of("j1"))
    yield database


async def add(database: Database, *numbers: int, node: str = "n1") -> None:
    async with database.begin() as tx:
        for number in numbers:
            await tx.commands.add([(node, stop(number))], NOW)


async def due(database: Database, now: datetime = NOW, limit: int = 100) -> list[PendingCommand]:
    async with database.begin() as tx:
        return await tx.commands.take_due(now, AGAIN_S, limit)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def ids(found: list[PendingCommand]) -> list[str]:
    return [one.id for one in found]


async def test_a_command_arrives_as_it_was(stored: Database) -> None:
    await add(stored, 1)
    (one,) = await due(stored)
    assert (one.id, one.node_id) == ("c0001", "n1")
    assert COMMANDS.validate_json(one.body) == stop(1)
    assert json.loads(one.body)["kind"] == "stop"


async def test_commands_are_due_in_the_order_they_were_given(stored: Database) -> None:
    await add(stored, 5, 3)
    await add(stored, 4, node="n2")
    assert ids(await due(stored)) == ["c0005", "c0003", "c0004"]


async def test_a_command_given_twice_is_one(stored: Database) -> None:
    await add(stored, 1)
    await add(stored, 1)
    assert ids(await due(stored)) == ["c0001"]


async def test_what_was_pushed_is_due_again_only_when_nobody_answered(stored: Database) -> None:
    await add(stored, 1)
    assert ids(await due(stored)) == ["c0001"]
    assert await due(stored, later(AGAIN_S)) == []
    assert ids(await due(stored, later(AGAIN_S + 0.1))) == ["c0001"]
    assert await due(stored, later(AGAIN_S + 0.2)) == []


async def test_what_was_acknowledged_is_never_due_again(stored: Database) -> None:
    await add(stored, 1, 2)
    async with stored.begin() as tx:
        await tx.commands.acknowledge({"n1": ["c0001", "unknown"]}, NOW)
        await tx.commands.acknowledge({"n1": []}, NOW)
    assert ids(await due(stored)) == ["c0002"]
    assert ids(await due(stored, later(3600))) == ["c0002"]


async def test_a_node_acknowledges_only_its_own(stored: Database) -> None:
    await add(stored, 1, node="n2")
    async with stored.begin() as tx:
        await tx.commands.acknowledge({"n1": ["c0001"]}, NOW)
    assert ids(await due(stored)) == ["c0001"]


async def test_the_oldest_come_first_and_no_more_than_asked(stored: Database) -> None:
    await add(stored, *range(30))
    assert ids(await due(stored, limit=7)) == [f"c{number:04}" for number in range(7)]
    assert ids(await due(stored, limit=7)) == [f"c{number:04}" for number in range(7, 14)]


async def test_two_deliverers_share_the_work(stored: Database) -> None:
    """Neither waits for the other, and together they take everything once."""
    await add(stored, *range(200))
    async with stored.begin() as one, stored.begin() as other:
        first = await one.commands.take_due(NOW, AGAIN_S, 50)
        second = await asyncio.wait_for(other.commands.take_due(NOW, AGAIN_S, 50), 60)
    assert (len(first), len(second)) == (50, 50)
    assert not {*ids(first)} & {*ids(second)}

    async def deliver() -> list[str]:
        taken: list[str] = []
        while found := ids(await due(stored, limit=9)):
            taken += found
        return taken

    taken = await asyncio.gather(*(deliver() for _ in range(4)))
    counts = Counter(one for some in (*taken, ids(first), ids(second)) for one in some)
    assert set(counts.values()) == {1}
    assert len(counts) == 200


async def test_what_a_crashed_deliverer_took_is_due_for_the_next(stored: Database) -> None:
    await add(stored, 1)

    async def crash() -> None:
        async with stored.begin() as tx:
            assert await tx.commands.take_due(NOW, AGAIN_S, 10)
            raise RuntimeError("killed before the commit")

    results = await asyncio.gather(crash(), return_exceptions=True)
    assert str(results[0]) == "killed before the commit"
    assert ids(await due(stored)) == ["c0001"]
