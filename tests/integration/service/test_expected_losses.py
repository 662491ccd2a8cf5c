"""The losses that a job's ranks expect follow its machines, and what happens to machines of their kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.cluster.spot_rate import FAILURES_PER_H, TOGETHER
from service.domain.rental.catalogue import hazard_of
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.spot.hazards import hazards_by_kind
from service.domain.rental.spot.history import spot_history
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness


async def put_on_spot(harness: Harness, *names: str) -> None:
    """Make nodes like those of machines that were rented on spot."""
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE nodes SET market = 'spot' WHERE name = ANY(:names)"), {"names": list(names)}
        )


async def take_away(harness: Harness, count: int) -> None:
    """Add so many leases of spot machines that their provider has just ended, at once after they began."""
    now = harness.clock.now()
    async with harness.service.database.begin() as tx:
        for number in range(count):
            await tx.machines.insert(lost(f"m{number}", now))


def lost(machine_id: str, at: datetime) -> Machine:
    return Machine(
        id=machine_id,
        provider="ec2",
        region="us-east-1",
        instance_type="c7.large",
        device_kind="cpu",
        slots=2,
        market=Market.SPOT,
        usd_per_h=0.03,
        state=MachineState.GONE,
        reason=MachineReason.SPOT_RECLAIMED,
        message="",
        requested_at=at,
        state_since=at,
        billed_from=at,
        billed_to=at,
    )


def interruptions(harness: Harness, count: int) -> float:
    """Return the interruptions per hour that a machine expects after `take_away`."""
    now = harness.clock.now()
    leases = [lost(f"m{number}", now) for number in range(count)]
    return hazards_by_kind(leases, {"cpu": hazard_of("cpu")}, now)["cpu"]


async def trains(cast: Cast, size: int, **spec: object) -> None:
    """Start a job of the library, which says that it follows orders."""
    await cast.begin(size, **spec)
    await cast.say((1, 0), "hello", 1)


async def test_a_start_has_the_losses_of_its_machines(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1, beta=1)
    await put_on_spot(harness, "alpha")
    await take_away(harness, 6)
    run = await cast.begin(2, market="mixed", elastic={"resize": "restart"})
    expected = 2 * FAILURES_PER_H + interruptions(harness, 6)
    assert run.losses is not None
    assert run.losses.per_h == pytest.approx(expected, rel=1e-3)
    told = (await harness.job()).progress.losses
    assert told is not None
    assert told.per_h == run.losses.per_h


async def test_a_change_has_the_losses_of_the_machines_that_it_leads_to(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1, beta=1)
    await put_on_spot(harness, "alpha", "beta")
    await take_away(harness, 12)
    await trains(cast, 1, market="spot")
    one = FAILURES_PER_H + interruptions(harness, 12)
    first = (await harness.job()).progress.losses
    assert first is not None
    assert first.per_h == pytest.approx(one, rel=1e-3)
    await cast.resize(2)
    await cast.ready((2, 1))
    for order in cast.orders(2).values():
        assert order.losses is not None
        assert order.losses.per_h == pytest.approx(TOGETHER * one, rel=1e-3)
    await cast.switch(2)
    lost_one = (await harness.job()).progress.losses
    assert lost_one is not None
    assert lost_one.per_h == pytest.approx(TOGETHER * one, rel=1e-3)


async def test_losses_that_change_while_a_job_trains_repeat_its_order(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=2)
    await put_on_spot(harness, "alpha")
    await trains(cast, 2, market="spot")
    await cast.turn()
    assert cast.orders(1) == {}, "the start said it"
    await take_away(harness, 24)
    await cast.turn()
    (order,) = cast.orders(1).values()
    assert order.losses is not None
    assert order.losses.per_h == pytest.approx(FAILURES_PER_H + interruptions(harness, 24), rel=1e-3)
    (event,) = await cast.events("losses_expected")
    assert event["data"]["before_per_h"] == pytest.approx(FAILURES_PER_H + hazard_of("cpu"))
    job = await harness.job()
    assert (job.state, job.generation, job.attempt) == (JobState.RUNNING, 1, 1)
    assert job.progress.losses == order.losses
    harness.clock.skipped += timedelta(seconds=10)
    await cast.turn()
    assert len(await cast.events("losses_expected")) == 1
    await cast.say(
        (1, 0),
        "checkpointed",
        1,
        uri="file:///c",
        samples=64,
        size_bytes=1,
        save_s=0.1,
        total_s=0.2,
        every_s=30,
    )
    shown = (await harness.job()).progress
    assert (shown.checkpoint_samples, shown.checkpoint_every_s) == (64, 30.0)


async def test_a_fixed_interval_hears_of_no_losses(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=2)
    await put_on_spot(harness, "alpha")
    await trains(cast, 2, market="spot", checkpoint={"every": "5m"})
    await take_away(harness, 24)
    await cast.turn()
    assert cast.orders(1) == {}
    assert (await harness.job()).progress.losses is None


async def test_ranks_hear_of_the_place_of_their_machines_and_not_of_their_kind(harness: Harness) -> None:
    """Both nodes are rented machines. Twelve machines of beta's zone were taken away, all of them at once."""
    cast = Cast(harness)
    await cast.join(alpha=1, beta=1)
    now = harness.clock.now()
    began = now - timedelta(hours=1)
    places = {"alpha": "zone-a", "beta": "zone-b"}
    leases = [replace(lost(f"l{number}", now), zone="zone-b", billed_from=began) for number in range(12)]
    leases += [
        replace(lost(name, began), zone=zone, state=MachineState.RUNNING, reason="JOINED", billed_to=None)
        for name, zone in places.items()
    ]
    async with harness.service.database.begin() as tx:
        for one in leases:
            await tx.machines.insert(one)
    await put_on_spot(harness, *places)
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE nodes SET machine_id = name WHERE name = ANY(:names)"), {"names": list(places)}
        )
    history = spot_history(leases, {"cpu": hazard_of("cpu")}, now)
    calm, rough = history.by_machine["alpha"], history.by_machine["beta"]
    assert rough.per_h > 3 * calm.per_h
    assert rough.together < TOGETHER == calm.together, "beta stayed"
    run = await cast.begin(2, market="spot")
    assert run.losses is not None
    together = min(rough.together, calm.together)
    assert run.losses.per_h == pytest.approx(together * (FAILURES_PER_H + calm.per_h), rel=1e-2)
    async with harness.service.database.begin() as tx:
        nodes = (await tx.rounds.snapshot(harness.clock.now())).nodes
    seen = {node.name: (node.hazard_per_h, node.together) for node in nodes.values()}
    assert seen["beta"] == (pytest.approx(rough.per_h, rel=1e-2), pytest.approx(rough.together, rel=1e-2))
