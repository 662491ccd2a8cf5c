"""`Machines`: what is rented, and how often spot machines are taken away."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest
from asyncpg import UniqueViolationError

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.adapters.postgres.database import Database
from service.domain.rental.machines import Machine, MachineState
from service.domain.shared.errors import NotFound
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.unit.service import builders


def at(hours: float) -> datetime:
    return NOW + timedelta(hours=hours)


machine_of = partial(builders.machine_of, usd_per_h=0.5)


async def put(database: Database, *machines: Machine) -> None:
    async with database.begin() as tx:
        for machine in machines:
            await tx.machines.insert(machine)


async def test_what_is_stored_is_what_is_found(database: Database) -> None:
    machine = machine_of(external_id="i-1", join_token_sha256="digest", billed_from=NOW)
    await put(database, machine)
    async with database.begin() as tx:
        assert await tx.machines.lock("m1") == machine
        assert await tx.machines.of_token("digest") == machine
        assert await tx.machines.of_token("another") is None
        known = tx.machines.known
        assert await known(machine.provider, ["i-1"]) == await known(machine.provider, ["m1"]) == [machine]
        assert await known("another", ["i-1"]) == []
        changed = replace(machine, state=MachineState.GONE, billed_to=at(1))
        await tx.machines.save(changed)
        assert await tx.machines.lock("m1") == changed
        with pytest.raises(NotFound, match="headway machines"):
            await tx.machines.lock("m2")


async def test_only_those_that_are_open_are_looked_after(database: Database) -> None:
    states = {f"m{number}": state for number, state in enumerate(MachineState)}
    await put(database, *(machine_of(name, state=state) for name, state in states.items()))
    async with database.begin() as tx:
        found = {one.state for one in await tx.machines.open()}
        page = await tx.machines.views(NOW, open_only=True, limit=10, cursor=None)
    assert found == set(MachineState) - {MachineState.GONE, MachineState.FAILED}
    assert {one.state for one in page.items} == {state.value for state in found}


async def test_two_leases_of_one_machine_are_refused(database: Database) -> None:
    await put(database, machine_of("m1", external_id="i-1"))
    with pytest.raises(UniqueViolationError):
        await put(database, machine_of("m2", external_id="i-1"))
    await put(database, machine_of("m3", external_id="i-1", provider="another"))


async def test_pages_go_from_the_newest_to_the_oldest(database: Database) -> None:
    await put(database, *(machine_of(f"m{number}", requested_at=at(number)) for number in range(5)))
    async with database.begin() as tx:
        names, cursor = [], None
        while True:
            page = await tx.machines.views(at(9), open_only=False, limit=2, cursor=cursor)
            names += [one.id for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        recent = [one.id for one in await tx.machines.requested_since(at(3))]
    assert names == ["m4", "m3", "m2", "m1", "m0"]
    assert recent == ["m3", "m4"]


async def test_a_machine_shows_its_node_and_what_it_has_cost(database: Database) -> None:
    await put(database, machine_of(external_id="i-1", billed_from=NOW, state=MachineState.RUNNING))
    async with database.begin() as tx:
        await store(tx, node_of("n1", machine_id="m1", market=Market.SPOT), job_of("j1"))
        await tx.grants.grant("j1", 1, {"n1": (0,)}, NOW)
    async with database.begin() as tx:
        (view,) = (await tx.machines.views(at(2), open_only=True, limit=10, cursor=None)).items
        joined = await tx.machines.joined()
    assert (view.node, view.billed_s, view.cost_usd) == ("name-of-n1", 7200, 1.0)
    assert (joined["m1"].node_id, joined["m1"].state, joined["m1"].empty) == ("n1", NodeState.READY, False)
