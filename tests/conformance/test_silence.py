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


async def beat(database: Database, process: str, seconds: float, *, late: bool = False) -> None:
    async with database.begin() as tx:
        await tx.nodes.beat(process, at(seconds), GAP_S, late=late)


async def reachable_since(database: Database, seconds: float) -> datetime | None:
    async with database.begin() as tx:
        return await tx.nodes.reachable_since(at(seconds), GAP_S)


async def test_no_api_has_ever_been_up(database: Database) -> None:
    assert await reachable_since(database, 0) is None


async def test_an_api_that_beats_has_been_up_since_its_first_beat(database: Database) -> None:
    for seconds in (0, 2, 4, 9):
        await beat(database, "a", seconds)
    assert await reachable_since(database, 10) == at(0)
    assert await reachable_since(database, 14.9) == at(0)
    assert await reachable_since(database, 15) is None


async def test_a_gap_begins_anew(database: Database) -> None:
    await beat(database, "a", 0)
    await beat(database, "a", GAP_S)
    assert await reachable_since(database, GAP_S) == at(GAP_S)


async def test_a_clock_that_was_set_begins_anew(database: Database) -> None:
    hour_s = 3600.0
    for seconds in (0, 2, 2 + hour_s):
        await beat(database, "a", seconds)
    assert await reachable_since(database, 2 + hour_s) == at(2 + hour_s)
    assert await reachable_since(database, 2) is None, "it goes by another clock, and may be dead"
    await beat(database, "a", 4)
    assert await reachable_since(database, 4) == at(4)


async def test_a_restarted_api_has_been_up_since_its_restart(database: Database) -> None:
    await beat(database, "before", 0)
    await beat(database, "after", 20)
    assert await reachable_since(database, 21) == at(20)


async def test_of_several_the_one_that_is_up_longest_counts(database: Database) -> None:
    """One replica may come and go while another hears every node."""
    for seconds in (0, 5, 10):
        await beat(database, "old", seconds)
    await beat(database, "new", 9)
    assert await reachable_since(database, 11) == at(0)
    await beat(database, "new", 14)
    await beat(database, "new", 19)
    assert await reachable_since(database, 20) == at(9)


async def test_while_one_of_them_is_late_nobody_is_heard(database: Database) -> None:
    """Its agents go on asking it, and not another one."""
    for seconds in (0, 4, 8):
        await beat(database, "well", seconds)
        await beat(database, "busy", seconds, late=seconds == 4)
    assert await reachable_since(database, 8) == at(4)
    await beat(database, "well", 11)
    assert await reachable_since(database, 15) == at(0), "it is gone, and its agents are with another one"


async def test_a_clock_that_was_set_back_makes_nobody_late(database: Database) -> None:
    await beat(database, "a", 3600, late=True)
    await beat(database, "a", 0)
    await beat(database, "a", 4)
    assert await reachable_since(database, 4) == at(0)


async def test_processes_that_beat_at_once(database: Database) -> None:
    await asyncio.gather(*(beat(database, process, 0) for process in ("a", "b", "a", "b", "a")))
    assert await reachable_since(database, 1) == at(0)


async def test_a_node_that_was_seen_in_the_future_was_seen_now(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("late", seen_at=at(3600)), node_of("near", seen_at=at(GAP_S)))
        await store(tx, node_of("before", seen_at=at(-1)))
    async with database.begin() as tx:
        await tx.nodes.reset_future_contacts(at(0), GAP_S)
    async with database.begin() as tx:
        seen = {name: one.seen_at for name, one in (await tx.nodes.many(["late", "near", "before"])).items()}
    assert seen == {"late": at(0), "near": at(GAP_S), "before": at(-1)}


@pytest.mark.parametrize("state", NodeState)
async def test_nodes_not_heard_of(database: Database, state: NodeState) -> None:
    silent = node_of("silent", state=state, seen_at=at(-20))
    async with database.begin() as tx:
        await store(tx, silent, node_of("heard", seen_at=at(0)), node_of("just", seen_at=at(-10)))
    async with database.begin() as tx:
        found = await tx.nodes.silent_since(at(-10))
    assert found == ([] if state is NodeState.LOST else ["silent"])


async def test_a_lost_node_on_which_slots_were_granted_meanwhile_is_found_again(database: Database) -> None:
    lost = node_of("gone", state=NodeState.LOST, seen_at=at(-20))
    async with database.begin() as tx:
        await store(tx, lost, job_of("j"))
        assert await tx.grants.grant("j", 1, {lost.id: (0,)}, at(-5))
    async with database.begin() as tx:
        assert await tx.nodes.silent_since(at(-10)) == [lost.id]
        await tx.grants.release("j", 1, None, {}, at(0))
    async with database.begin() as tx:
        assert await tx.nodes.silent_since(at(-10)) == []


async def test_whoever_works_on_a_silent_node_is_not_waited_for(database: Database) -> None:
    """It may be about to say that the node is there."""
    async with database.begin() as tx:
        await store(tx, node_of("n", seen_at=at(-20)))
    async with database.begin() as reporting:
        await reporting.nodes.lock("n")
        async with database.begin() as expiring:
            assert await expiring.nodes.silent_since(at(-10)) == ["n"]
            assert await expiring.nodes.lock_silent("n", at(-10)) is None
        await reporting.nodes.seen(node_of("n", seen_at=at(0)))
    async with database.begin() as expiring:
        assert await expiring.nodes.lock_silent("n", at(-10)) is None
        assert await expiring.nodes.lock_silent("n", at(1)) == node_of("n", seen_at=at(0))


async def test_a_silent_node_is_not_declared_lost_while_it_reports(database: Database) -> None:
    """The row is locked: a report that comes now waits, and does not find the node as it was."""
    async with database.begin() as tx:
        await store(tx, node_of("n", seen_at=at(-20)))
    async with database.begin() as expiring:
        assert await expiring.nodes.lock_silent("n", at(-10)) is not None

        async def report() -> NodeState:
            async with database.begin() as tx:
                return (await tx.nodes.lock("n")).state

        reporting = asyncio.create_task(report())
        await expiring.nodes.save(node_of("n", state=NodeState.LOST, seen_at=at(-20)))
        done, _ = await asyncio.wait({reporting}, timeout=0.2)
        assert not done
    assert await reporting is NodeState.LOST
