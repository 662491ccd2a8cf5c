"""`Ledger` and its passes over real rows: what is paid for and what is charged are the same, whenever passes come."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from headway.contract.agents import NodeState, SlotInfo
from headway.contract.views.jobs import JobState
from headway.contract.views.money import GroupBy
from service.adapters.postgres.database import Database
from service.domain.rental.machines import MachineState
from tests.conformance.conftest import node_of, store
from tests.conformance.ledger_rig import (
    at,
    begin_training,
    event,
    grant,
    machine_of,
    pass_at,
    reconcile,
    release,
    rent,
    rows_at_once,
    rows_of,
    usage,
)


async def test_a_job_pays_for_its_slots_and_nobody_for_the_rest(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    await pass_at(database, 100)
    assert await usage(database) == {"useful": 0.088, "resize": 0.002, "idle": 0.110}
    assert await usage(database, GroupBy.JOB) == {"j1": 0.090, "": 0.110}
    assert await usage(database, GroupBy.PROJECT) == {"default": 0.090, "": 0.110}
    assert await usage(database, GroupBy.MARKET) == {"spot": 0.200}
    assert await usage(database, GroupBy.NODE) == {"n1": 0.200}
    await reconcile(database)


async def test_a_pass_again_and_two_at_once_change_nothing(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    await pass_at(database, 100)
    before = await rows_of(database)
    await pass_at(database, 100)
    await asyncio.gather(*(pass_at(database, 100) for _ in range(4)))
    assert await rows_of(database) == before


async def test_accrual_at_random_moments_is_accrual_at_once(database: Database) -> None:
    """News come between passes, and one takes back what settled hours had."""
    seed = random.Random(7)
    hour = 3600.0

    async def fail() -> None:
        await event(database, 2.4 * hour, "fail_rank", JobState.RECOVERING)

    async def start_again() -> None:
        await grant(database, 2.41 * hour, 2, [0, 1])
        await event(database, 2.41 * hour, "allocate", JobState.STARTING, 2)

    async def train_again() -> None:
        await event(database, 2.42 * hour, "start", JobState.RUNNING, 2)
        await event(database, 2.42 * hour, "first_step", JobState.RUNNING, 2)
        await event(database, 2.43 * hour, "restore", JobState.RUNNING, 2, lost_samples=9, lost_s=2 * hour)

    async def end() -> None:
        await event(database, 3.6 * hour, "succeed", JobState.SUCCEEDED, 2)
        await release(database, 3.6 * hour, 2)

    await rent(database, machine_of())
    await begin_training(database)
    news = {2.4: fail, 2.41: start_again, 2.43: train_again, 3.6: end}
    moments = sorted([seed.uniform(0.01, 4.5) for _ in range(25)] + [4.5])
    for moment in moments:
        for due in sorted(one for one in news if one <= moment):
            await news.pop(due)()
        await pass_at(database, moment * hour)
        await reconcile(database)
    found = await rows_of(database)
    assert found == await rows_at_once(database, 4.5 * hour)
    lost = sum(us for row, us in found.items() if row[4] == "lost")
    assert lost == round((2 + 0.01) * hour * 1e6)
    assert {row[5] for row in found if row[4] == "lost"} == {"NODE_LOST"}


async def test_a_bill_that_ended_before_it_was_known_is_corrected(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    for moment in (1000, 5000, 9000):
        await pass_at(database, moment)
    async with database.begin() as tx:
        machine = await tx.machines.lock("m1")
        await tx.machines.save(replace(machine, state=MachineState.GONE, billed_to=at(3000.5)))
    await pass_at(database, 9005)
    assert sum((await rows_of(database)).values()) == 2 * 3_000_500_000
    await reconcile(database)
    async with database.begin() as tx:
        (bill,) = await tx.spending.machine_bills(at(0), at(1))
    assert (bill.paid_s, bill.charged_s) == (3000.5, 3000.5)
    assert bill.usd == pytest.approx(3000.5 * 7.2 / 3600)
    before = await rows_of(database)
    await pass_at(database, 90_000)
    assert await rows_of(database) == before, "a lease that has ended is settled"


async def test_a_bill_that_began_at_another_time_is_corrected(database: Database) -> None:
    await rent(database, machine_of())
    await pass_at(database, 5000)
    for moved in (-100.0, 4000.0):
        async with database.begin() as tx:
            machine = await tx.machines.lock("m1")
            await tx.machines.save(replace(machine, billed_from=at(moved)))
        await pass_at(database, 5000)
        assert sum((await rows_of(database)).values()) == 2 * round((5000 - moved) * 1e6)
        await reconcile(database)


async def test_the_least_that_is_paid_for_is_charged(database: Database) -> None:
    ended = machine_of(min_billed_s=60.0, billed_to=at(20), state=MachineState.GONE)
    await rent(database, ended, None)
    await pass_at(database, 25)
    assert await usage(database) == {"idle": 0.120}
    await pass_at(database, 7200)
    assert await usage(database) == {"idle": 0.120}


async def test_a_machine_that_never_joins_is_idle_and_one_that_is_not_billed_free(database: Database) -> None:
    await rent(database, machine_of("m1"), None)
    await rent(database, machine_of("m2", billed_from=None, state=MachineState.WANTED), None)
    await pass_at(database, 50)
    assert await usage(database) == {"idle": 0.100}
    async with database.begin() as tx:
        await store(tx, node_of("n1", slots=2, machine_id="m1", seen_at=at(60)))
    await begin_training(database, 60)
    await pass_at(database, 100)
    assert await usage(database) == {"useful": 0.038, "resize": 0.002, "idle": 0.160}


async def test_hosts_of_ones_own_cost_what_was_said_while_they_are_there(database: Database) -> None:
    node = node_of("n1", slots=1, joined_at=at(1), seen_at=at(1))
    await pass_at(database, 0)
    async with database.begin() as tx:
        await store(tx, node)
    for state, seen, moment in (
        (NodeState.READY, 10, 11),
        (NodeState.READY, 20, 21),
        (NodeState.LOST, 20, 40),
        (NodeState.LOST, 20, 60),
        (NodeState.READY, 90, 91),
    ):
        async with database.begin() as tx:
            await tx.nodes.save(replace(node, state=state, seen_at=at(seen)))
        await pass_at(database, moment)
        await reconcile(database)
    assert await usage(database) == {"idle": pytest.approx((19 + 30) / 1000)}


async def test_a_price_that_changes_holds_from_then_on(database: Database) -> None:
    node = node_of("n1", slots=1, joined_at=at(0), seen_at=at(10))
    await pass_at(database, 0)
    async with database.begin() as tx:
        await store(tx, node)
    await pass_at(database, 10)
    async with database.begin() as tx:
        await tx.nodes.save(replace(node, seen_at=at(30)))
    await pass_at(database, 30, {"cpu": 36.0})
    assert await usage(database) == {"idle": pytest.approx(0.010 + 0.200)}


async def test_no_price_is_said_and_not_taken_for_free(database: Database) -> None:
    slots = (SlotInfo(index=0, device_kind="cpu"), SlotInfo(index=1, device_kind="odd"))
    await pass_at(database, 0)
    async with database.begin() as tx:
        await store(tx, replace(node_of("n1", seen_at=at(36)), slots=slots))
    await pass_at(database, 36)
    async with database.begin() as tx:
        (idle,) = await tx.spending.usage(at(-3600), at(3600), GroupBy.CATEGORY, projects=None)
        assert await tx.spending.unpriced_kinds(at(-3600), at(3600)) == ["odd"]
    assert idle.usd == pytest.approx(0.036)
    assert (idle.slot_h, idle.unpriced_slot_h) == (0.02, 0.01)


async def test_a_clock_that_goes_back_takes_nothing_back(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    await pass_at(database, 100)
    await pass_at(database, 50)
    await reconcile(database)
    await pass_at(database, 100)
    assert await usage(database) == {"useful": 0.088, "resize": 0.002, "idle": 0.110}


async def test_an_hour_may_have_more_jobs_than_a_statement_has_parameters(database: Database) -> None:
    many = [f"j{number}" for number in range(40_000)]
    async with database.begin() as tx:
        assert await tx.ledger.timeline_events(many, since_us=0) == {}
        assert await tx.ledger.members(many, since_us=0) == {}
        assert await tx.ledger.held(0, node_ids=many) == []
        assert await tx.ledger.leases_on(many, 0) == []
