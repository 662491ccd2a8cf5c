"""A ledger over real rows: machines, grants and events at moments, and what passes make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from headway.contract.agents import Member
from headway.contract.views.jobs import JobState, Reason
from headway.contract.views.money import GroupBy
from service.adapters.postgres.database import Database
from service.domain.jobs.records import AllocationRecord, Event
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.usecases.money.accrue import accrue
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.unit.service import builders

PRICES = {"cpu": 3.6}
"""A thousandth of a dollar for each slot-second."""
Rows = dict[tuple[str, ...], int]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def machine_of(machine_id: str = "m1", **fields: Any) -> Machine:
    """One that has joined and is billed."""
    joined = {
        "provider": "static",
        "instance_type": "box",
        "usd_per_h": 7.2,
        "state": MachineState.RUNNING,
        "reason": MachineReason.JOINED,
        "billed_from": NOW,
        "min_billed_s": 0.0,
    }
    return builders.machine_of(machine_id, **{**joined, **fields})


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


async def rows_at_once(database: Database, seconds: float) -> Rows:
    """Return the rows of one pass over everything, which replaces the passes before it."""
    async with database.engine.begin() as connection:
        await connection.execute(text("TRUNCATE leases, charges, ledger_state"))
    await pass_at(database, seconds)
    return await rows_of(database)


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
        groups = await tx.spending.usage(at(-86400), at(86400 * 30), by, projects=None)
    return {one.key: pytest.approx(one.usd, abs=1e-9) for one in groups}


async def event(
    database: Database, seconds: float, kind: str, state: JobState, generation: int = 1, **data: Any
) -> None:
    async with database.begin() as tx:
        await tx.jobs.add_event(
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
        await tx.grants.end_allocation("j1", generation - 1, at(seconds))
        await tx.grants.add_allocation(
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
        await tx.grants.end_allocation("j1", generation, at(seconds))


async def begin_training(database: Database, seconds: float = 10) -> None:
    """A job that starts on slot 0 and trains two seconds later."""
    async with database.begin() as tx:
        await store(tx, job_of("j1"))
    await grant(database, seconds, 1, [0])
    await event(database, seconds, "allocate", JobState.STARTING)
    await event(database, seconds + 2, "start", JobState.RUNNING)
    await event(database, seconds + 2, "first_step", JobState.RUNNING)
