"""`Ledger` and its passes over real rows: what is paid for and what is charged are the same, whenever passes come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from headway.contract.agents import Member, NodeState, SlotInfo
from headway.contract.jobs import JobState, Reason
from headway.contract.markets import Market
from headway.contract.money import GroupBy
from service.adapters.postgres.database import Database
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.usecases.accrue import accrue
from service.usecases.records import AllocationRecord, Event
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.integration.service.counting import statements

PRICES = {"cpu": 3.6}
"""A thousandth of a dollar for each slot-second."""
Rows = dict[tuple[str, ...], int]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def machine_of(machine_id: str = "m1", **fields: Any) -> Machine:
    return Machine(
        **{
            "id": machine_id,
            "provider": "static",
            "region": "here",
            "instance_type": "box",
            "device_kind": "cpu",
            "slots": 2,
            "market": Market.SPOT,
            "usd_per_h": 7.2,
            "state": MachineState.RUNNING,
            "reason": MachineReason.JOINED,
            "message": "",
            "requested_at": NOW,
            "state_since": NOW,
            "billed_from": NOW,
            "min_billed_s": 0.0,
            **fields,
        }
    )


async def rent(database: Database, machine: Machine, node_id: str | None = "n1") -> None:
    async with database.begin() as tx:
        await tx.machines.insert(machine)
        if node_id is not None:
            await store(tx, node_of(node_id, slots=machine.slots, machine_id=machine.id, seen_at=at(1e6)))


async def pass_at(database: Database, seconds: float, prices: Mapping[str, float] = PRICES) -> None:
    async with database.begin() as tx:
        await accrue(tx, prices, at(seconds))


async def rows_of(database: Database) -> Rows:
    async with database.engine.connect() as connection:
        found = await connection.execute(
            text("SELECT lease_id, hour::text, job_id, project, category, cause, slot_us FROM charges")
        )
        return {tuple(map(str, row[:-1])): int(row[-1]) for row in found.all()}


async def reconcile(database: Database) -> None:
    """Every lease's rows add up to all of its slots for all of its time."""
    async with database.engine.connect() as connection:
        found = await connection.execute(
            text(
                "SELECT id, jsonb_array_length(slots) * round(extract(epoch FROM to_at - from_at) * 1000000),"
                " (SELECT coalesce(sum(slot_us), 0) FROM charges WHERE lease_id = leases.id) FROM leases"
            )
        )
        for lease_id, paid, charged in found.all():
            assert int(paid) == int(charged), lease_id


async def usage(database: Database, by: GroupBy = GroupBy.CATEGORY) -> dict[str, Any]:
    async with database.begin() as tx:
        groups = await tx.money_queries.usage(at(-86400), at(86400 * 30), by, projects=None)
    return {one.key: pytest.approx(one.usd, abs=1e-9) for one in groups}


async def event(
    database: Database, seconds: float, kind: str, state: JobState, generation: int = 1, **data: Any
) -> None:
    async with database.begin() as tx:
        await tx.history.event(
            Event(
                job_id="j1",
                at=at(seconds),
                kind=kind,
                message="",
                generation=generation,
                state=state,
                reason=Reason.NODE_LOST if state is JobState.RECOVERING else Reason.PROGRESSING,
                data=data,
            )
        )


async def grant(database: Database, seconds: float, generation: int, slots: Sequence[int]) -> None:
    held = {"n1": tuple(slots)}
    async with database.begin() as tx:
        await tx.grants.release("j1", generation - 1, None, {}, at(seconds))
        assert await tx.grants.grant("j1", generation, held, at(seconds))
        await tx.allocations.end("j1", generation - 1, at(seconds))
        await tx.allocations.add(
            AllocationRecord(
                job_id="j1",
                generation=generation,
                slots=held,
                device_kind="cpu",
                first_node="n1",
                master_port=20000,
                reason=Reason.ALLOCATED,
                message="",
                round_id=None,
                granted_at=at(seconds),
                members=tuple(
                    Member(rank=rank, node_id="n1", slot=slot, born_generation=generation, born_rank=rank)
                    for rank, slot in enumerate(slots)
                ),
            )
        )


async def release(database: Database, seconds: float, generation: int) -> None:
    async with database.begin() as tx:
        await tx.grants.release("j1", generation, None, {}, at(seconds))
        await tx.allocations.end("j1", generation, at(seconds))


async def begin_training(database: Database, seconds: float = 10) -> None:
    """A job that starts on slot 0 and trains two seconds later."""
    async with database.begin() as tx:
        await store(tx, job_of("j1"))
    await grant(database, seconds, 1, [0])
    await event(database, seconds, "allocate", JobState.STARTING)
    await event(database, seconds + 2, "start", JobState.RUNNING)


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
    async with database.engine.begin() as connection:
        await connection.execute(text("TRUNCATE leases, charges, ledger_state"))
    await pass_at(database, 4.5 * hour)
    assert found == await rows_of(database)
    lost = sum(us for row, us in found.items() if row[4] == "lost")
    assert lost == round((2 + 0.01) * hour * 1e6)
    assert {row[5] for row in found if row[4] == "lost"} == {"NODE_LOST"}


async def test_what_is_settled_is_not_written_again(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    await event(database, 100, "succeed", JobState.SUCCEEDED)
    await release(database, 100, 1)
    versions = []
    for moment in (200, 1000, 1005, 1700, 3000):
        await pass_at(database, moment)
        await reconcile(database)
        async with database.engine.connect() as connection:
            found = await connection.execute(
                text("SELECT xmin::text FROM charges WHERE job_id = 'j1' ORDER BY category")
            )
            versions.append(found.scalars().all())
    assert len(versions[0]) == 2
    assert versions[2] == versions[3] == versions[4]
    assert versions[0] != versions[2], "they are written anew until they are settled"


async def test_a_pass_asks_as_often_for_many_nodes_that_came_one_after_the_other_as_for_one(
    database: Database,
) -> None:
    await pass_at(database, 0)
    counts = []
    for number in range(12):
        node = node_of(f"n{number}", slots=1, joined_at=at(number + 0.5), seen_at=at(1e6))
        async with database.begin() as tx:
            await store(tx, node)
        await pass_at(database, number + 1)
    for moment in (100, 400, 800, 1200, 1205):
        with statements(database) as sent:
            await pass_at(database, moment)
        counts.append(len(sent))
        await reconcile(database)
    assert max(counts) <= 16


async def test_what_a_service_that_knows_of_no_settling_wrote_is_written_anew(database: Database) -> None:
    """As during an update, and after going back to the version before."""
    await rent(database, machine_of())
    await begin_training(database)
    for moment in (1000, 2000):
        await pass_at(database, moment)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE charges SET settled_us = 0"))
    await event(database, 2100, "succeed", JobState.SUCCEEDED)
    await release(database, 2100, 1)
    for moment in (2200, 3000):
        await pass_at(database, moment)
        await reconcile(database)
    found = await rows_of(database)
    async with database.engine.begin() as connection:
        await connection.execute(text("TRUNCATE leases, charges, ledger_state"))
    await pass_at(database, 3000)
    assert found == await rows_of(database)


async def test_work_that_is_done_again_is_lost_on_a_host_that_is_gone(database: Database) -> None:
    """The host is LOST and its lease has ended when the job, on another, says how far back it had to go."""
    node = node_of("n1", slots=1, joined_at=at(0), seen_at=at(0))
    async with database.begin() as tx:
        await store(tx, node)
    await pass_at(database, 0)
    await begin_training(database, 0)
    for state, seen, moment in ((NodeState.READY, 100, 100), (NodeState.LOST, 100, 130)):
        async with database.begin() as tx:
            await tx.nodes.save(replace(node, state=state, seen_at=at(seen)))
        await pass_at(database, moment)
    await event(database, 125, "fail_rank", JobState.RECOVERING)
    await release(database, 125, 1)
    await event(database, 160, "allocate", JobState.STARTING, 2)
    await event(database, 162, "start", JobState.RUNNING, 2)
    await event(database, 163, "restore", JobState.RUNNING, 2, lost_samples=9, lost_s=60.0)
    for moment in (170, 1000, 1700):
        await pass_at(database, moment)
        await reconcile(database)
        assert await usage(database) == {"useful": 0.063, "resize": 0.002, "lost": 0.035}
    async with database.begin() as tx:
        assert await tx.ledger.unsettled(0) == []


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
        (bill,) = await tx.money_queries.machine_bills(at(0), at(1))
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
        (idle,) = await tx.money_queries.usage(at(-3600), at(3600), GroupBy.CATEGORY, projects=None)
        assert await tx.money_queries.unpriced_kinds(at(-3600), at(3600)) == ["odd"]
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
        assert await tx.ledger.marks(many, since_us=0) == {}
        assert await tx.ledger.members(many, since_us=0) == {}
        assert await tx.ledger.held(0, node_ids=many) == []
        assert await tx.ledger.leases_on(many, 0) == []
