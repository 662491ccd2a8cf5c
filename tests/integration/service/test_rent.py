"""Renting, pass by pass, over a real database and a provider that may fail at any step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from headway.contract.agents import JoinReply, NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from headway.contract.views.machines import MachineView
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.domain.nodes.silence import SilenceRule
from service.domain.policies.registry import POLICIES
from service.domain.rental.fleet import Patience, not_launched
from service.domain.rental.machines import Found, MachineReason
from service.domain.rental.rental_targets import RentalRules
from service.domain.shared.errors import NoCapacity, ProviderRefused, Superseded, Unavailable
from service.usecases.nodes.expire import expire_nodes
from service.usecases.ports.rental import JoinBy
from service.usecases.rental.provider_calls import ask_for
from service.usecases.rental.rent import Memory, Renting, RentResult, rent
from tests.integration.service.cloud import Cloud, Crash, Instance, small_offer
from tests.integration.service.conftest import JOIN_TOKEN, Agent, Harness, join_body, run_of

NUMBERS = itertools.count()


@dataclass
class Stage:
    """The service, the cloud, and what one pass left to the next."""

    harness: Harness
    cloud: Cloud
    rules: RentalRules = field(default_factory=lambda: RentalRules(idle_s=0.0))
    memory: Memory = field(default_factory=Memory)
    others: Sequence[Cloud] = ()

    async def turn(self) -> RentResult:
        harness = self.harness
        renting = Renting(
            providers=[*self.others, self.cloud],
            rules=self.rules,
            patience=Patience(),
            public_url="http://headway",
            join_secret=JOIN_TOKEN,
            policies=POLICIES,
            new_machine_id=lambda: f"m{next(NUMBERS):08}",
        )
        result = await rent(
            harness.service.database, renting, self.memory, harness.service.launch, now=harness.clock.now
        )
        self.memory = result.memory
        return result

    def skip(self, seconds: float) -> None:
        self.harness.clock.skipped += timedelta(seconds=seconds)

    async def machines(self) -> list[MachineView]:
        page = (await self.harness.client.get("/api/v1/machines?limit=500")).json()
        return [MachineView.model_validate(one) for one in page["items"]]

    async def machine(self) -> MachineView:
        (one,) = await self.machines()
        return one

    async def node_state(self, name: str) -> NodeState:
        async with self.harness.service.database.begin() as tx:
            return (await tx.nodes.lock(name)).state

    async def listed_nodes(self) -> list[str]:
        return [one["name"] for one in (await self.harness.client.get("/api/v1/nodes")).json()["items"]]

    async def ask_to_join(self, rented: Instance, **changes: Any) -> httpx.Response:
        body = {**join_body(rented.join.node_name, 2), **changes}
        return await self.harness.client.post(
            "/api/v1/agents", json=body, headers={"Authorization": f"Bearer {rented.join.token}"}
        )

    async def joins(self, instance: Instance, **changes: Any) -> Agent:
        """The instance's agent joins."""
        response = await self.ask_to_join(instance, **changes)
        assert response.status_code == 201, response.text
        reply = JoinReply.model_validate_json(response.content)
        return Agent(self.harness.client, self.harness.service.redis, instance.join.node_name, reply)

    async def running(self, **spec: Any) -> tuple[Agent, Instance]:
        """A machine that was rented for a job, with its agent."""
        await self.harness.submit(market="spot", elastic={"min": 2}, **spec)
        await self.turn()
        (instance,) = self.cloud.running()
        return await self.joins(instance), instance


@pytest.fixture
def stage(harness: Harness) -> Stage:
    cloud = Cloud(harness.clock.now)
    cloud.sells.append(small_offer(harness.clock.now()))
    return Stage(harness, cloud)


async def test_a_job_that_waits_gets_a_machine_and_when_it_has_ended_the_machine_goes(stage: Stage) -> None:
    agent, instance = await stage.running()
    machine = await stage.machine()
    assert (machine.state, machine.external_id, machine.node) == ("running", "i-0", instance.join.node_name)
    assert machine.market is Market.SPOT
    await stage.harness.turn()
    run = run_of(await agent.commands())
    await stage.turn()
    assert len(await stage.machines()) == 1, "it has what it needs"
    started = {"kind": "ranks_started", "job_id": run.job_id, "generation": 1, "how": "spawn"}
    await agent.report(started)
    done = [
        {"kind": "rank_exited", "job_id": run.job_id, "generation": 1, "rank": rank, "exit_code": 0}
        for rank in range(2)
    ]
    await agent.report(*done, {"kind": "released", "job_id": run.job_id, "generation": 1})
    stage.skip(90)
    await stage.turn()
    assert ((machine := await stage.machine()).state, machine.reason) == ("ending", "IDLE")
    assert await stage.node_state(instance.join.node_name) is NodeState.DRAINING, "no job starts there now"
    assert await stage.listed_nodes() == [instance.join.node_name]
    await stage.turn()
    assert stage.cloud.running() == []
    await stage.turn()
    machine = await stage.machine()
    assert (machine.state, machine.reason, machine.billed_to) == ("gone", "IDLE", instance.ended)
    assert await stage.node_state(instance.join.node_name) is NodeState.LOST
    assert await stage.listed_nodes() == []
    assert machine.cost_usd == pytest.approx(machine.billed_s * 0.12 / 3600)


async def test_an_answer_that_is_lost_makes_no_second_machine(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    stage.cloud.lose_answers = True
    result = await stage.turn()
    assert (result.launched, result.unanswered) == (0, 1)
    assert (await stage.machine()).state == "wanted"
    await stage.turn()
    assert (await stage.machine()).external_id == "i-0", "found in the list"
    assert len(stage.cloud.instances) == 1


async def test_the_service_ends_before_it_has_asked(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    stage.cloud.next_errors = [Crash()]
    with pytest.raises(Crash):
        await stage.turn()
    assert (await stage.machine()).state == "wanted"
    stage.memory = Memory()
    await stage.turn()
    assert (await stage.machine()).state == "launching"
    assert len(stage.cloud.instances) == 1


async def test_without_capacity_it_waits_before_it_asks_again(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    stage.cloud.next_errors = [NoCapacity("none left"), NoCapacity("none left")]
    assert (await stage.turn()).not_launched == 1
    machine = await stage.machine()
    assert (machine.state, machine.reason, machine.message) == ("failed", "NO_CAPACITY", "none left")
    assert machine.billed_from is None
    await stage.turn()
    assert stage.cloud.launches == 1
    stage.skip(31)
    await stage.turn()
    stage.skip(31)
    await stage.turn()
    assert stage.cloud.launches == 2, "twice as long after the second time"
    stage.skip(31)
    await stage.turn()
    assert stage.cloud.launches == 3
    assert sorted(one.state for one in await stage.machines()) == ["failed", "failed", "launching"]


async def test_what_is_refused_says_why_and_is_not_asked_for_again(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    stage.cloud.next_errors = [ProviderRefused("no such image")]
    await stage.turn()
    stage.skip(600)
    await stage.turn()
    machine = await stage.machine()
    assert (machine.state, machine.reason, machine.message) == ("failed", "REFUSED", "no such image")


async def test_a_token_joins_one_machine_once(stage: Stage) -> None:
    _, instance = await stage.running()
    again = await stage.ask_to_join(instance)
    assert again.status_code == 201, "its own agent may come back"
    other = await stage.ask_to_join(instance, instance="instance-of-another")
    assert other.status_code == 401
    assert "works once" in other.json()["detail"]
    named = await stage.ask_to_join(instance, name="mine")
    assert named.status_code == 401
    stage.cloud.end(instance.external_id)
    await stage.turn()
    late = await stage.ask_to_join(instance)
    assert late.status_code == 401
    assert "lease of this machine has ended" in late.json()["detail"]


async def test_an_agent_that_joins_before_the_answer_of_the_launch_is_written(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    stage.cloud.lose_answers = True
    await stage.turn()
    (instance,) = stage.cloud.running()
    await stage.joins(instance)
    assert (await stage.machine()).state == "running"
    await stage.turn()
    machine = await stage.machine()
    assert (machine.state, machine.external_id, machine.billed_from) == ("running", "i-0", instance.began)


async def test_one_whose_agent_never_joins_is_given_back(stage: Stage) -> None:
    await stage.harness.submit(market="spot")
    await stage.turn()
    stage.skip(601)
    await stage.turn()
    assert (await stage.machine()).reason == "NEVER_JOINED"
    assert stage.cloud.running() == []
    await stage.turn()
    states = sorted((one.state, one.reason) for one in await stage.machines())
    assert states == [("gone", "NEVER_JOINED")], "what did not come up is not asked for again at once"


async def test_a_machine_that_ends_without_notice_is_lost_at_once(stage: Stage) -> None:
    _, instance = await stage.running()
    await stage.harness.turn()
    assert (await stage.harness.job()).state is JobState.STARTING
    stage.cloud.end(instance.external_id, "taken away")
    await stage.turn()
    machine = next(one for one in await stage.machines() if one.external_id == instance.external_id)
    assert (machine.state, machine.reason, machine.message) == ("gone", "SPOT_RECLAIMED", "taken away")
    assert await stage.node_state(instance.join.node_name) is NodeState.LOST
    job = await stage.harness.job()
    assert job.state is not JobState.STARTING
    await stage.turn()
    assert len(stage.cloud.running()) == 1, "another one for the job"


async def test_what_no_lease_knows_is_terminated(stage: Stage) -> None:
    _, instance = await stage.running()
    stage.cloud.instances.append(replace(instance, external_id="i-ghost", machine_id="ghost"))
    await stage.turn()
    assert [one.external_id for one in stage.cloud.running()] == ["i-0"]


async def test_silence_of_the_provider_changes_nothing(stage: Stage) -> None:
    await stage.running()
    before = await stage.machines()
    stage.cloud.badness = 1.0
    with suppress(Crash):
        await stage.turn()
    stage.cloud.badness = 0.0
    after = await stage.machines()
    assert [one.state for one in after] == [one.state for one in before]


@dataclass
class Broken(Cloud):
    """A provider whose adapter has a fault."""

    name: str = "broken"

    def stumble(self) -> None:
        raise KeyError("State")

    async def list(self) -> Sequence[Found]:
        raise KeyError("Reservations")


async def test_a_fault_in_one_providers_adapter_leaves_no_machine_of_another_unattended(stage: Stage) -> None:
    _, instance = await stage.running()
    stage.others = [Broken(stage.harness.clock.now)]
    stage.cloud.end(instance.external_id, "taken away")
    stage.cloud.instances.append(replace(instance, external_id="i-ghost", machine_id="ghost", ended=None))
    await stage.turn()
    ended = next(one for one in await stage.machines() if one.external_id == instance.external_id)
    assert ended.state == "gone"
    assert "i-ghost" not in {one.external_id for one in stage.cloud.running()}


async def test_a_lost_node_of_a_machine_keeps_what_it_is_when_its_agent_comes_back(stage: Stage) -> None:
    agent, instance = await stage.running()
    stage.skip(16)
    async with stage.harness.service.database.begin() as tx:
        await tx.nodes.beat("api", stage.harness.clock.now() - timedelta(seconds=20), 30)
    async with stage.harness.service.database.begin() as tx:
        await tx.nodes.beat("api", stage.harness.clock.now(), 30)
    service = stage.harness.service
    lost = await expire_nodes(
        service.database,
        silence=SilenceRule(15.0, 300.0),
        launch=service.launch,
        now=stage.harness.clock.now(),
    )
    assert lost == [instance.join.node_name]
    response = await stage.ask_to_join(instance)
    assert response.status_code == 201
    agent.joined = JoinReply.model_validate_json(response.content)
    await agent.report()
    async with stage.harness.service.database.begin() as tx:
        node = await tx.nodes.lock(instance.join.node_name)
    assert (node.state, node.market, node.machine_id, node.usd_per_slot_h) == (
        NodeState.READY,
        Market.SPOT,
        instance.machine_id,
        0.06,
    )


async def test_of_two_leaders_one_rents(stage: Stage) -> None:
    for number in range(3):
        await stage.harness.submit(f"j-{number}", market="spot", elastic={"min": 2})
    results = await asyncio.gather(stage.turn(), stage.turn())
    less, more = sorted(one.wanted for one in results)
    assert less == 0 < more
    assert len(await stage.machines()) == more


async def test_a_leader_whose_term_is_over_launches_nothing(stage: Stage) -> None:
    """It stood still after it had said that it wants a machine. Meanwhile another one has led, and has perhaps given it up."""
    database, now = stage.harness.service.database, stage.harness.clock.now
    await stage.harness.submit(market="spot", elastic={"min": 2})
    stage.cloud.next_errors = [Unavailable("it stood still")]
    await stage.turn()
    async with database.begin() as tx:
        (wanted,) = await tx.machines.open()
    join = JoinBy(url="http://headway", token="token", node_name="node")

    service = stage.harness.service
    leadership = PostgresLeadership(service.settings.database_url, service.holder)
    assert await leadership.acquire() == 1
    await leadership.resign()
    with pytest.raises(Superseded):
        await ask_for(database.of_term(0), stage.cloud, wanted, join, now)
    async with database.begin() as tx:
        await tx.machines.lock(wanted.id)
        await tx.machines.save(not_launched(wanted, MachineReason.GIVEN_UP, "not worth it any more", now()))
    assert await ask_for(database.of_term(1), stage.cloud, wanted, join, now) == "not wanted"
    assert stage.cloud.instances == []


async def test_bounds_hold(stage: Stage) -> None:
    stage.rules = RentalRules(max_usd_per_h=0.13)
    for number in range(4):
        await stage.harness.submit(f"j-{number}", market="spot", elastic={"min": 2})
    await stage.turn()
    await stage.turn()
    assert len(await stage.machines()) == 1


@pytest.mark.slow
async def test_hundreds_of_faults_leave_no_orphan_and_every_machine_on_one_lease(stage: Stage) -> None:
    cloud, rng = stage.cloud, stage.cloud.rng
    cloud.badness = 0.15
    for number in range(60):
        if number % 6 == 0:
            await stage.harness.submit(f"j-{number}", market="spot")
        stage.skip(rng.choice([5, 30, 120]))
        try:
            await stage.turn()
        except Crash:
            stage.memory = Memory()
        for instance in cloud.running():
            if rng.random() < 0.1:
                cloud.end(instance.external_id, "taken away")
            elif rng.random() < 0.5:
                await stage.ask_to_join(instance)
    assert cloud.faults > 100
    cloud.badness, cloud.sells = 0.0, []
    for job in (await stage.harness.client.get("/api/v1/jobs")).json()["items"]:
        await stage.harness.post(f"jobs/{job['id']}/cancel", {"force": True})
    for _ in range(40):
        stage.skip(120)
        await stage.turn()
    assert cloud.running() == []
    machines = await stage.machines()
    assert {one.state for one in machines} <= {"gone", "failed"}
    leases = sorted((one.external_id, one.billed_from, one.billed_to) for one in machines if one.external_id)
    assert leases == sorted((one.external_id, one.began, one.ended) for one in cloud.instances)
