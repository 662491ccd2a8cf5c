"""`Grants`: a slot has one holder at every moment, however many transactions want it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest_asyncio
from sqlalchemy import text

from headway.contract.views.jobs import Reason
from service.adapters.postgres.database import Database
from service.domain.jobs.job import Allocation
from service.domain.jobs.membership import first_members
from service.domain.jobs.ranks import layout
from service.domain.jobs.records import AllocationRecord
from tests.conformance.conftest import NOW, job_of, node_of, store

JOBS = [f"j{index}" for index in range(6)]
SLOTS = {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)}


@pytest_asyncio.fixture
async def stored(database: Database) -> AsyncIterator[Database]:
    """Six jobs, and two nodes of four slots."""
    async with database.begin() as tx:
        await store(tx, *(node_of(node) for node in SLOTS), *(job_of(job) for job in JOBS))
    yield database


async def grant(database: Database, job: str, slots: Allocation, generation: int = 1) -> bool:
    async with database.begin() as tx:
        return await tx.grants.grant(job, generation, slots, NOW)


async def held(database: Database, job: str) -> dict[int, Allocation]:
    async with database.begin() as tx:
        return await tx.grants.held(job)


async def holders(database: Database) -> Counter[tuple[str, int]]:
    """How many hold each slot, as the rows say."""
    async with database.engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT node_id, slot FROM slot_grants WHERE released_at IS NULL")
        )
        return Counter((row.node_id, row.slot) for row in rows)


async def test_granted_slots_are_held(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0, 2), "n2": (1,)})
    assert await held(stored, "j0") == {1: {"n1": (0, 2), "n2": (1,)}}
    assert await held(stored, "j1") == {}
    async with stored.begin() as tx:
        assert await tx.grants.on_node("n1") == {("j0", 1)}
        assert await tx.grants.on_node("n2") == {("j0", 1)}


async def test_nothing_wanted_is_always_granted(stored: Database) -> None:
    assert await grant(stored, "j0", {})
    assert await held(stored, "j0") == {}


async def test_all_or_nothing(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (1,)})
    assert not await grant(stored, "j1", {"n1": (0, 1, 2), "n2": (0,)})
    assert await held(stored, "j1") == {}
    assert await grant(stored, "j2", {"n1": (0, 2), "n2": (0,)})


async def test_a_refused_grant_does_not_spoil_the_rest_of_its_transaction(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0,)})
    async with stored.begin() as tx:
        assert await tx.grants.grant("j1", 1, {"n1": (1,)}, NOW)
        assert not await tx.grants.grant("j2", 1, {"n1": (0, 2)}, NOW)
        assert await tx.grants.grant("j3", 1, {"n1": (2,)}, NOW)
    assert [len((await held(stored, job)).get(1, {})) for job in JOBS[:4]] == [1, 1, 0, 1]


async def test_not_even_the_same_job_gets_a_slot_twice(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0,)}, generation=1)
    assert not await grant(stored, "j0", {"n1": (0,)}, generation=2)


async def test_of_many_who_want_one_slot_at_once_one_gets_it(stored: Database) -> None:
    results = await asyncio.gather(*(grant(stored, job, {"n1": (3,)}) for job in JOBS))
    assert sorted(results) == [False] * 5 + [True]
    assert (await holders(stored))["n1", 3] == 1


async def test_opposite_orders_do_not_dead_lock(stored: Database) -> None:
    """Both want the same two nodes, named in opposite order."""
    for _ in range(10):
        both = [{"n1": (0, 1), "n2": (0, 1)}, {"n2": (1, 0), "n1": (1, 0)}]
        results = await asyncio.gather(
            grant(stored, "j0", both[0]), grant(stored, "j1", both[1]), return_exceptions=True
        )
        assert sorted(map(str, results)) == ["False", "True"]
        async with stored.begin() as tx:
            for job in ("j0", "j1"):
                await tx.grants.release(job, 1, None, {}, NOW)


async def test_a_slot_that_was_not_committed_is_free_again(stored: Database) -> None:
    async with stored.engine.connect() as connection:
        insert = "INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at) VALUES ('n1',0,'j0',1,now())"
        await connection.execute(text(insert))
        wanting = asyncio.create_task(grant(stored, "j1", {"n1": (0,)}))
        await connection.rollback()
        assert await wanting


async def test_release_frees_one_node_or_all(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0,), "n2": (0,)})
    async with stored.begin() as tx:
        await tx.grants.release("j0", 1, "n1", {}, NOW)
    assert await held(stored, "j0") == {1: {"n2": (0,)}}
    assert await grant(stored, "j1", {"n1": (0,)})
    async with stored.begin() as tx:
        await tx.grants.release("j0", 1, None, {}, NOW)
        await tx.grants.release("j0", 1, None, {}, NOW)
    assert await held(stored, "j0") == {}
    assert await held(stored, "j1") == {1: {"n1": (0,)}}


async def test_release_frees_what_one_start_holds_and_nothing_of_another(stored: Database) -> None:
    for generation in (1, 2, 3):
        assert await grant(stored, "j0", {"n1": (generation,)}, generation=generation)
    async with stored.begin() as tx:
        assert await tx.grants.release("j0", 2, None, {}, NOW)
        assert not await tx.grants.release("j0", 2, None, {}, NOW)
    assert await held(stored, "j0") == {1: {"n1": (1,)}, 3: {"n1": (3,)}}


async def test_release_frees_some_slots_of_a_node(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0, 1, 2), "n2": (1,)})
    async with stored.begin() as tx:
        assert await tx.grants.release("j0", 1, "n1", {}, NOW, slots=[1, 3])
        assert not await tx.grants.release("j0", 1, "n1", {}, NOW, slots=[])
    assert await held(stored, "j0") == {1: {"n1": (0, 2), "n2": (1,)}}


async def test_what_is_carried_over_passes_to_the_next_generation(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0, 1), "n2": (0,)}, generation=4)
    async with stored.begin() as tx:
        await tx.grants.release("j0", 4, "n1", {"n1": (1, 3)}, NOW + timedelta(seconds=1))
    assert await held(stored, "j0") == {4: {"n2": (0,)}, 5: {"n1": (1,)}}
    assert await grant(stored, "j1", {"n1": (0,)})


async def test_what_is_carried_over_skips_numbers_that_were_given_up(stored: Database) -> None:
    assert await grant(stored, "j0", {"n1": (0,)}, generation=4)
    async with stored.begin() as tx:
        await tx.grants.release("j0", 4, "n1", {"n1": (0,)}, NOW, next_generation=7)
    assert await held(stored, "j0") == {7: {"n1": (0,)}}


async def test_a_carried_slot_is_never_free_for_a_moment(stored: Database) -> None:
    """Another job grabs at it all the while, in transactions of its own."""
    assert await grant(stored, "j0", {"n1": (0,)}, generation=1)
    done = asyncio.Event()
    refused: Counter[str] = Counter()

    async def grab(job: str) -> bool:
        while not done.is_set():
            if await grant(stored, job, {"n1": (0,)}):
                return True
            refused[job] += 1
        return False

    rivals = JOBS[1:4]
    grabbing = [asyncio.create_task(grab(job)) for job in rivals]
    generation = 1
    while min(refused[job] for job in rivals) < 5 and not any(task.done() for task in grabbing):
        async with stored.begin() as tx:
            await tx.grants.release("j0", generation, "n1", {"n1": (0,)}, NOW)
        generation += 1
    done.set()
    assert await asyncio.gather(*grabbing) == [False] * 3
    assert await held(stored, "j0") == {generation: {"n1": (0,)}}


async def test_random_grants_and_releases_never_double_a_slot(stored: Database) -> None:
    """Six jobs grant, carry over and release at random; each knows what it should hold."""
    chance = random.Random(7)

    async def live(job: str, dice: random.Random) -> None:
        mine: dict[str, tuple[int, ...]] = {}
        for generation in range(1, 26):
            wanted = {
                node: tuple(sorted(set(dice.sample(slots, dice.randint(1, 2))) - set(mine.get(node, ()))))
                for node, slots in SLOTS.items()
            }
            wanted = {node: slots for node, slots in wanted.items() if slots}
            keep = {node: slots for node, slots in mine.items() if dice.random() < 0.7}
            async with stored.begin() as tx:
                granted = await tx.grants.grant(job, generation + 1, wanted, NOW)
            async with stored.begin() as tx:
                await tx.grants.release(job, generation, None, keep, NOW)
            mine = {
                node: tuple(sorted({*keep.get(node, ()), *(wanted.get(node, ()) if granted else ())}))
                for node in SLOTS
            }
            mine = {node: slots for node, slots in mine.items() if slots}
            assert await held(stored, job) == ({generation + 1: mine} if mine else {})

    async def watch(stop: asyncio.Event) -> None:
        while not stop.is_set():
            assert max((await holders(stored)).values(), default=0) <= 1

    stop = asyncio.Event()
    watching = asyncio.create_task(watch(stop))
    await asyncio.gather(*(live(job, random.Random(chance.random())) for job in JOBS))
    stop.set()
    await watching


async def test_members_stored_again_replace_those_of_their_generation_alone(stored: Database) -> None:
    allocation = AllocationRecord(
        job_id="j0",
        generation=1,
        slots={"n1": (0, 1)},
        device_kind="cpu",
        first_node="n1",
        master_port=20_000,
        members=first_members(layout({"n1": (0, 1)}), 1),
        reason=Reason.ALLOCATED,
        message="got slots",
        round_id=None,
        granted_at=NOW,
    )
    known = tuple(one.model_copy(update={"pid": 50 + one.rank}) for one in allocation.members)
    async with stored.begin() as tx:
        for generation in (1, 2):
            await tx.grants.add_allocation(replace(allocation, generation=generation))
        await tx.grants.load_allocations([("j0", 1), ("j0", 2)])
        await tx.grants.save_members("j0", 1, known)
        read = await tx.grants.allocation("j0", 1)
        assert read is not None
        assert read.members == known
    async with stored.begin() as tx:
        first, second = [await tx.grants.allocation("j0", number) for number in (1, 2)]
        assert first == replace(allocation, members=known)
        assert second == replace(allocation, generation=2)
