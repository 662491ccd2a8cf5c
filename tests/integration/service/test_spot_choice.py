"""The rule of the spot market in the running service: what it rents, what rounds make of it, and what it returns."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import RunCommand
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.cluster.market_limits import MarketLimit
from service.domain.rental.rental_targets import RentalRules
from service.domain.shared.errors import NoCapacity
from tests.integration.service.cast import Cast
from tests.integration.service.cloud import Cloud, small_offer
from tests.integration.service.conftest import Harness
from tests.integration.service.test_rent import Stage


@pytest.fixture
def stage(harness: Harness) -> Stage:
    """A cloud that sells machines with two slots on both markets."""
    cloud = Cloud(harness.clock.now)
    cloud.sells.append(small_offer(harness.clock.now()))
    return Stage(harness, cloud, rules=RentalRules(max_machines=8, idle_s=60.0))


class Play:
    """A job on rented machines."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cast = Cast(stage.harness)
        self.joined: set[str] = set()

    async def join(self) -> list[str]:
        """Have the agents of all new machines join. Return the names of their nodes."""
        fresh = [one for one in self.stage.cloud.running() if one.external_id not in self.joined]
        for one in fresh:
            self.cast.agents[one.join.node_name] = await self.stage.joins(one)
            self.cast.told[one.join.node_name] = []
            self.joined.add(one.external_id)
        return [one.join.node_name for one in fresh]

    async def rented(self) -> dict[str, int]:
        """The machines that are rented and not being returned, by market."""
        found = [
            one.market.value
            for one in await self.stage.machines()
            if one.state in {"wanted", "launching", "running"}
        ]
        return {market.value: found.count(market.value) for market in Market}

    async def limits(self) -> list[MarketLimit]:
        """The limits that the next round observes."""
        async with self.stage.harness.service.database.begin() as tx:
            snapshot = await tx.rounds.snapshot(self.stage.harness.clock.now())
        return list(snapshot.market_limits.values())

    async def phases(self) -> list[tuple[int, str]]:
        """The on-demand machines and the phase of each choice, oldest first."""
        events = await self.cast.events("market_choice")
        return [(one["data"]["on_demand"], one["data"]["phase"]) for one in events]

    async def run(self, **spec: Any) -> None:
        """A job trains on the two slots of one spot machine, at 100 samples per second."""
        spec = {"elastic": {"min": 2, "max": 4}, "market": "mixed", "goal": {"objective": "cost"}, **spec}
        await self.stage.harness.submit("job", **spec)
        await self.stage.turn()
        await self.join()
        await self.cast.turn()
        (run,) = self.cast.started(1).values()
        (node,) = self.cast.started(1)
        await self.cast.news(node, self.cast.entry(run.generation, "ranks_started", how="zygote"))
        await self.cast.say((1, 0), "first_step", 1, samples=32, live=True)
        await self.cast.trained((1, 0), 1, 64, 100.0, local_batch=32, accumulation=1, max_global_batch=64)
        assert (await self.cast.job()).state is JobState.RUNNING

    async def grows(self) -> int:
        """Let a round change the job in place, to the end. Return the generation."""
        await self.cast.turn()
        switching = max(
            one.generation for told in self.cast.told.values() for one in told if isinstance(one, RunCommand)
        )
        fresh = [who for who in self.cast.homes if who[0] == switching]
        for node in {self.cast.homes[who][0] for who in fresh}:
            await self.cast.news(node, self.cast.entry(switching, "ranks_started", how="zygote"))
        await self.cast.ready(*fresh)
        await self.cast.turn()
        return switching


async def test_machines_on_demand_stand_in_for_missing_spot_machines_and_go_again(stage: Stage) -> None:
    play = Play(stage)
    await play.run()
    assert await play.rented() == {"on-demand": 0, "spot": 1}
    assert await play.limits() == [], "its speed was not known before"

    # There is no more spot capacity, and after an hour the job is behind.
    stage.skip(3600)
    stage.cloud.next_errors = [NoCapacity("none left")]
    await stage.turn()
    assert await play.phases() == [(0, "starting")]
    await stage.turn()
    assert await play.rented() == {"on-demand": 1, "spot": 1}
    limit = (await play.limits())[0]
    assert (limit.on_demand, limit.spot, limit.slots) == (1, 1, {"cpu": 2, "cpu (spot)": 2})
    assert await play.phases() == [(0, "starting"), (1, "behind")]
    (machine,) = [one for one in await stage.machines() if one.market is Market.ON_DEMAND]
    assert "job" in machine.message

    # The next round uses the machine, although the job's price weight alone would leave it idle.
    (firm,) = await play.join()
    generation = await play.grows()
    members = play.cast.members(generation)
    assert sorted(play.cast.homes[who][0] == firm for who in members) == [False, False, True, True]
    await play.cast.switch(generation)

    # Spot machines can be had again: once their successor has joined, the machine on demand is left and returned.
    stage.skip(31)
    await stage.turn()
    assert await play.rented() == {"on-demand": 1, "spot": 2}
    assert (await play.phases())[-1] == (1, "behind"), "its successor is starting"
    await play.join()
    await stage.turn()
    assert (await play.phases())[-1] == (0, "present")
    assert (await play.limits())[0].slots == {"cpu": 0, "cpu (spot)": 4}
    stage.skip(700)
    generation = await play.grows()
    assert all(play.cast.homes[who][0] != firm for who in play.cast.members(generation))


async def test_a_deadline_moves_a_job_to_machines_on_demand(stage: Stage) -> None:
    """Its 936,000 samples take 4,680 s or more on four slots, and 80 minutes are left."""
    play = Play(stage)
    deadline = stage.harness.clock.now() + timedelta(hours=2)
    await play.run(goal={"objective": "cost", "deadline": deadline.isoformat()})
    stage.skip(2400)
    await stage.turn()
    assert await play.phases() == [(2, "pressed")]
    assert await play.rented() == {"on-demand": 2, "spot": 1}, "the job trains on until they have joined"
    await play.join()
    await stage.turn()
    limit = (await play.limits())[0]
    assert (limit.on_demand, limit.spot) == (2, 0)
    generation = await play.grows()
    firm = {one.node for one in await stage.machines() if one.market is Market.ON_DEMAND}
    assert {play.cast.homes[who][0] for who in play.cast.members(generation)} == firm


async def test_the_limits_end_with_the_renting(stage: Stage) -> None:
    play = Play(stage)
    await play.run()
    await stage.turn()
    assert len(await play.limits()) == 1
    await stage.harness.post("jobs/job/resize", {"slots": 2})
    await stage.turn()
    assert await play.limits() == [], "its user has chosen its size"
    await stage.harness.post("jobs/job/resize", {"slots": None})
    await stage.turn()
    assert len(await play.limits()) == 1
    async with stage.harness.service.database.begin() as tx:
        await tx.machines.drop_market_limits()
    assert await play.limits() == []


async def test_machines_are_not_rented_beyond_the_limits_of_the_service(stage: Stage) -> None:
    play = Play(stage)
    await play.run()
    stage.rules = replace(stage.rules, max_machines=1)
    stage.skip(3600)
    await stage.turn()
    assert await play.rented() == {"on-demand": 0, "spot": 1}
    assert "limit of 1 machines" in stage.memory.held_back
