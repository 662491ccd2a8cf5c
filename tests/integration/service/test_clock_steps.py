"""The database's clock is set, by an hour forward or back: nobody is lost, nothing waits for an hour, nothing is billed twice."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.domain.life.changes import SWITCHED_WITHIN_S
from service.usecases.nodes.expire import HEARD_WITHIN_S
from service.usecases.rounds.deliver import PUSH_AGAIN_S
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Agent, Harness
from tests.integration.service.test_life_of_a_job import start

HOUR = timedelta(hours=1)
PRICES = {"cpu": 3.6}


class Times:
    """The database's clock as all replicas see it. Time goes by only when the test says so."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.now = datetime.now(UTC)

    async def go(self, by: timedelta) -> None:
        self.now += by
        await self.look()

    async def look(self) -> None:
        """Read the clock, as the loop of the clock does."""
        clock = self.harness.service.clock
        clock._read = self._said
        await clock.look()
        self.harness.clock.skipped = self.now - datetime.now(UTC)

    async def _said(self) -> datetime:
        return self.now

    async def pass_by(self, seconds: float, *agents: Agent) -> None:
        """In steps: the API beats, these agents report, and the scheduler looks who is silent."""
        for _ in range(int(seconds / 2)):
            await self.go(timedelta(seconds=2))
            await self.harness.service.beat()
            for agent in agents:
                await agent.report()
            await self.harness.scheduler.expire()


async def states(harness: Harness) -> dict[str, str]:
    found = (await harness.client.get("/api/v1/nodes")).json()["items"]
    return {one["name"]: one["state"] for one in found}


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_step_loses_no_node_and_who_dies_then_is_noticed(harness: Harness, step: timedelta) -> None:
    times = Times(harness)
    alive, dies = await harness.join("alive"), await harness.join("dies")
    await times.pass_by(30, alive, dies)
    await times.go(step)
    await harness.scheduler.expire()
    assert set((await states(harness)).values()) == {NodeState.READY}, "nobody has said anything since"
    await times.pass_by(10, alive)
    assert set((await states(harness)).values()) == {NodeState.READY}
    await times.pass_by(24, alive)
    assert await states(harness) == {"alive": NodeState.READY, "dies": NodeState.LOST}


async def test_an_api_that_dies_as_the_clock_is_set_back_is_not_taken_for_one_that_hears(
    harness: Harness,
) -> None:
    times = Times(harness)
    agent = await harness.join()
    await times.pass_by(30, agent)
    await times.go(-HOUR)
    for _ in range(60):
        await times.go(timedelta(seconds=10))
        await harness.scheduler.expire()
    assert set((await states(harness)).values()) == {NodeState.READY}


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_replicas_hear_of_a_step_one_after_another(harness: Harness, step: timedelta) -> None:
    """Whoever looks who is silent has just looked at the clock. The API hears of the step later, agents report to it before
    and after, and it says later still that it is up.
    """
    times = Times(harness)
    agent = await harness.join()
    await times.pass_by(30, agent)

    async def nobody_is_lost() -> None:
        await harness.scheduler.expire()
        assert await states(harness) == {agent.name: NodeState.READY}

    harness.clock.skipped += step
    await nobody_is_lost()
    await harness.service.beat()
    await agent.report()
    await nobody_is_lost()
    await times.go(step)
    await agent.report()
    await nobody_is_lost()
    await harness.service.beat()
    await nobody_is_lost()


async def test_a_command_is_pushed_again_after_the_clock_was_set_back(harness: Harness) -> None:
    times = Times(harness)
    await times.look()
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    assert await agent.commands()
    await harness.service.redis.flushall()
    await times.go(-HOUR)
    agent.seen.clear()
    await harness.scheduler.deliver()
    assert await agent.commands(), "a lost command must not wait for the clock"
    await harness.service.redis.flushall()
    await times.go(timedelta(seconds=PUSH_AGAIN_S - 4))
    await harness.scheduler.deliver()
    agent.seen.clear()
    assert not await agent.commands(), "it was pushed just now"


async def test_a_change_under_way_is_not_ended_by_a_step_forward(harness: Harness) -> None:
    cast, times = Cast(harness), Times(harness)
    await times.look()
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    alpha = cast.agents["alpha"]
    await times.pass_by(HEARD_WITHIN_S + 4, alpha)
    await times.go(timedelta(seconds=2 * SWITCHED_WITHIN_S))
    await times.pass_by(HEARD_WITHIN_S - 4, alpha)
    assert (await cast.job()).state is JobState.RESIZING
    await cast.switch(2)
    assert (await cast.job()).state is JobState.RUNNING


async def test_a_retry_does_not_wait_for_the_clock(harness: Harness) -> None:
    times = Times(harness)
    await times.look()
    agent = await harness.join(slots=1)
    await harness.submit(retry={"infrastructure": 5})
    run = await start(harness, agent)
    async with harness.service.database.begin() as tx:
        (job,) = (await tx.jobs.lock_many([run.job_id])).values()
        await tx.grants.release(job.id, 1, None, {}, times.now)
        waiting = replace(
            job, state=JobState.RECOVERING, allocation={}, retry_at=times.now + timedelta(minutes=1)
        )
        await tx.jobs.save(waiting)
    await harness.turn()
    assert (await harness.job()).state is JobState.RECOVERING
    await times.go(-HOUR)
    await harness.turn()
    assert (await harness.job()).state is JobState.STARTING


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
async def test_no_hour_is_billed_twice_or_less_than_not_at_all(harness: Harness, seed: int) -> None:
    """Passes come whenever they like, between them the clock is set as the dice have it: what is charged for a lease is
    always its own time, of which no hour holds more than an hour.
    """
    dice, times = random.Random(seed), Times(harness)
    await times.look()
    scheduler = replace(harness.scheduler, usd_per_slot_h=PRICES)
    agent = await harness.join(slots=2)
    await harness.submit()
    await start(harness, agent)
    furthest, first = times.now, times.now
    for _ in range(25):
        step = dice.choice(
            [timedelta(seconds=5)] * 6 + [HOUR, -HOUR, timedelta(minutes=7), -timedelta(minutes=3)]
        )
        await times.go(step)
        furthest, first = max(furthest, times.now), min(first, times.now)
        if dice.random() < 0.8:
            await agent.report()
        if dice.random() < 0.8:
            await scheduler.accrue()
            await _assert_sound(harness, furthest - first)


async def _assert_sound(harness: Harness, longest: timedelta) -> None:
    async with harness.service.database.engine.connect() as connection:
        charges = await connection.execute(
            text("SELECT hour, min(slot_us), sum(slot_us) FROM charges GROUP BY lease_id, hour")
        )
        for hour, least, total in charges.all():
            assert least > 0, hour
            assert total <= 2 * 3600 * 1_000_000, hour
        leases = await connection.execute(
            text(
                "SELECT id, from_at, to_at, (SELECT coalesce(sum(slot_us), 0) FROM charges WHERE lease_id = leases.id)"
                " FROM leases"
            )
        )
        for lease, from_at, to_at, charged in leases.all():
            paid = to_at - from_at
            assert timedelta() <= paid <= longest, lease
            assert int(charged) == 2 * (paid // timedelta(microseconds=1)), lease
