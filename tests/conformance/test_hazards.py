"""Rounds and recommendations see what leases have shown of how often machines are taken away."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio

from headway.contract.agents import SlotInfo
from headway.contract.values.markets import Market, pool_name
from service.adapters.postgres.database import Database
from service.domain.cluster.market_limits import MarketLimit
from service.domain.rental.catalogue import hazard_of
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.spot.hazards import hazards_by_kind
from tests.conformance.conftest import NOW, job_of, node_of
from tests.conformance.test_decisions import snapshot


def lease(number: int, reason: MachineReason, **fields: object) -> Machine:
    """A spot machine that ended an hour ago, after an hour."""
    began, ended = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    machine = Machine(
        id=f"m{number}",
        provider="ec2",
        region="us-east-1",
        instance_type="g4dn.xlarge",
        device_kind="t4",
        slots=1,
        market=Market.SPOT,
        usd_per_h=0.16,
        state=MachineState.GONE,
        reason=reason,
        message="",
        requested_at=began,
        state_since=ended,
        billed_from=began,
        billed_to=ended,
    )
    return replace(machine, **fields)  # type: ignore[arg-type]


def slots_of(kind: str) -> tuple[SlotInfo, ...]:
    return (SlotInfo(index=0, device_kind=kind),)


@pytest_asyncio.fixture
async def rented(database: Database) -> Database:
    """Ten leases of an hour each, of which three were taken away, and an on-demand one that was too."""
    reasons = [MachineReason.SPOT_RECLAIMED] * 3 + [MachineReason.IDLE] * 7
    async with database.begin() as tx:
        for number, reason in enumerate(reasons):
            await tx.machines.insert(lease(number, reason))
        await tx.machines.insert(lease(10, MachineReason.ENDED_BY_PROVIDER, market=Market.ON_DEMAND))
    return database


async def test_a_round_knows_the_hazard_of_the_spot_machines_that_it_has(rented: Database) -> None:
    assert (await snapshot(rented)).hazard_per_h == {}
    async with rented.begin() as tx:
        await tx.nodes.save(replace(node_of("n1"), slots=slots_of("t4"), market=Market.SPOT))
        await tx.nodes.save(replace(node_of("n2"), slots=slots_of("a100")))
    found = (await snapshot(rented)).hazard_per_h
    async with rented.begin() as tx:
        leases = await tx.machines.requested_since(NOW - timedelta(days=1))
    expected = hazards_by_kind(leases, {"t4": hazard_of("t4")}, NOW)["t4"]
    assert expected > hazard_of("t4")
    assert found == {pool_name("t4", Market.SPOT): pytest.approx(expected)}


async def test_a_rented_node_knows_the_risk_of_its_place(rented: Database) -> None:
    async with rented.begin() as tx:
        open_lease = lease(
            11, MachineReason.JOINED, state=MachineState.RUNNING, billed_to=None, zone="zone-b"
        )
        await tx.machines.insert(open_lease)
        await tx.nodes.save(
            replace(node_of("n1"), slots=slots_of("t4"), market=Market.SPOT, machine_id=open_lease.id)
        )
        await tx.nodes.save(replace(node_of("n2"), slots=slots_of("t4"), market=Market.SPOT))
    found = await snapshot(rented)
    own = found.nodes["n1"].hazard_per_h
    assert own is not None
    assert own < hazard_of("t4") < found.hazard_per_h[pool_name("t4", Market.SPOT)], (
        "nothing was lost in its zone"
    )
    assert found.nodes["n2"].hazard_per_h is None


async def test_market_limits_are_stored_and_removed(database: Database) -> None:
    limit = MarketLimit(slots={"cpu": 2}, on_demand=1, spot=3, phase="behind", reason="it is late")
    async with database.begin() as tx:
        for name in ("one", "two"):
            await tx.jobs.insert(job_of(name), idempotency_key=None, request_digest="")
        await tx.machines.store_market_limits({"one": limit, "two": limit})
    assert (await snapshot(database)).market_limits == {"one": limit, "two": limit}
    async with database.begin() as tx:
        await tx.machines.store_market_limits({"one": None})
    assert (await snapshot(database)).market_limits == {"two": limit}
    async with database.begin() as tx:
        await tx.machines.drop_market_limits()
    assert (await snapshot(database)).market_limits == {}


async def test_a_kind_that_was_never_rented_has_the_catalogues(database: Database) -> None:
    async with database.begin() as tx:
        await tx.nodes.save(replace(node_of("n1"), slots=slots_of("v100"), market=Market.SPOT))
    found = (await snapshot(database)).hazard_per_h
    assert found == {pool_name("v100", Market.SPOT): pytest.approx(hazard_of("v100"))}
