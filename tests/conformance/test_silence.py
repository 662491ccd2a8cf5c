"""`Silence`: which nodes were not heard of, and since when anybody could have heard them."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from headway.contract.agents import NodeState
from service.adapters.postgres.database import Database
from tests.conformance.conftest import NOW, job_of, node_of, store

GAP_S = 6.0


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def beat(database: Database, process: str, seconds: float) -> None:
    async with database.begin() as tx:
        await tx.silence.beat(process, at(seconds), GAP_S)


async def up_since(database: Database, seconds: float) -> datetime | None:
    async with database.begin() as tx:
        return await tx.silence.api_up_since(at(seconds), GAP_S)


async def test_no_api_has_ever_been_up(database: Database) -> None:
    assert await up_since(database, 0) is None


async def test_an_api_that_beats_has_been_up_since_its_first_beat(database: Database) -> None:
    for seconds in (0, 2, 4, 9):
        await beat(database, "a", seconds)
    assert await up_since(database, 10) == at(0)
    assert await up_since(database, 14.9) == at(0)
    assert await up_since(database, 15) is None


async def test_a_gap_begins_anew(database: Database) -> None:
    await beat(database, "a", 0)
    await beat(database, "a", GAP_S)
    assert await up_since(database, GAP_S) == at(GAP_S)


async def test_a_clock_that_was_set_begins_anew(database: Database) -> None:
    hour_s = 3600.0
    for seconds in (0, 2, 2 + hour_s):
        await beat(database, "a", seconds)
    assert await up_since(database, 2 + hour_s) == at(2 + hour_s)
    assert await up_since(database, 2) is None, "it goes by another clock, and may be dead"
    await beat(database, "a", 4)
    assert await up_since(database, 4) == at(4)


async def test_a_restarted_api_has_been_up_since_its_restart(database: Database) -> None:
    await beat(database, "before", 0)
    await beat(database, "after", 20)
    assert await up_since(database, 21) == at(20)


async def test_of_several_the_one_that_is_up_longest_counts(database: Database) -> None:
    """One replica may come and go while another hears every node."""
    for seconds in (0, 5, 10):
        await beat(database, "old", seconds)
    await beat(database, "new", 9)
    assert await up_since(database, 11) == at(0)
    await beat(database, "new", 14)
    await beat(database, "new", 19)
    assert await up_since(database, 20) == at(9)


async def test_processes_that_beat_at_once(database: Database) -> None:
    await asyncio.gather(*(beat(database, process, 0) for process in ("a", "b", "a", "b", "a")))
    assert await up_since(database, 1) == at(0)


async def test_a_node_that_was_seen_in_the_future_was_seen_now(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("late", seen_at=at(3600)), node_of("near", seen_at=at(GAP_S)))
        await store(tx, node_of("before", seen_at=at(-1)))
    async with database.begin() as tx:
        await tx.silence.not_before_its_time(at(0), GAP_S)
    async with database.begin() as tx:
        seen = {name: one.seen_at for name, one in (await tx.nodes.many(["late", "near", "before"])).items()}
    assert seen == {"late": at(0), "near": at(GAP_S), "before": at(-1)}


@pytest.mark.parametrize("state", NodeState)
async def test_nodes_not_heard_of(database: Database, state: NodeState) -> None:
    silent = node_of("silent", state=state, seen_at=at(-20))
    async with database.begin() as tx:
        await store(tx, silent, node_of("heard", seen_at=at(0)), node_of("just", seen_at=at(-10)))
    async with database.begin() as tx:
        found = await tx.silence.silent_since(at(-10))
    assert found == ([] if state is NodeState.LOST else [silent])


async def test_a_lost_node_on_which_slots_were_granted_meanwhile_is_found_again(database: Database) -> None:
    lost = node_of("gone", state=NodeState.LOST, seen_at=at(-20))
    async with database.begin() as tx:
        await store(tx, lost, job_of("j"))
        assert await tx.grants.grant("j", 1, {lost.id: (0,)}, at(-5))
    async with database.begin() as tx:
        assert await tx.silence.silent_since(at(-10)) == [lost]
        await tx.grants.release("j", 1, None, {}, at(0))
    async with database.begin() as tx:
        assert await tx.silence.silent_since(at(-10)) == []


async def test_a_silent_node_is_not_declared_lost_while_it_reports(database: Database) -> None:
    """The rows are locked: a report that comes now waits, and does not find the node as it was."""
    async with database.begin() as tx:
        await store(tx, node_of("n", seen_at=at(-20)))
    async with database.begin() as expiring:
        assert len(await expiring.silence.silent_since(at(-10))) == 1

        async def report() -> NodeState:
            async with database.begin() as tx:
                return (await tx.nodes.lock("n")).state

        reporting = asyncio.create_task(report())
        await expiring.nodes.save(node_of("n", state=NodeState.LOST, seen_at=at(-20)))
        done, _ = await asyncio.wait({reporting}, timeout=0.2)
        assert not done
    assert await reporting is NodeState.LOST
