"""Lives of machines, money, questions and files, as scripts: told as those of jobs are."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.contract.agents import JoinReply
from headway.contract.views.jobs import JobState
from headway.contract.views.simulations import SimulationRequest, SimulationResult
from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.registry import POLICIES
from service.domain.rental.fleet import Patience
from service.domain.rental.rental_targets import RentalRules
from service.usecases.ports.simulations import OnProgress
from service.usecases.rental.rent import Memory, Renting, rent
from tests.integration.service.cloud import Cloud, small_offer
from tests.integration.service.conftest import JOIN_TOKEN, Agent, join_body
from tests.integration.service.crashing import World
from tests.integration.service.lives import Hand, ask, join, state, turn

PRICE = 36_000.0
"""Dollars for an hour of a slot: ten for a second, so that seconds of a test cost something."""


async def money(world: World) -> None:
    """A budget is told of, a job pauses when its own money is spent, another one stops."""
    await world.scheduler.accrue()
    alpha = await join(world, "alpha", 2)
    body = {"usd": 1e7, "period": "month"}
    assert (await world.client.put("/api/v1/budgets/b", json=body)).status_code in {200, 201}
    await world.submit("pauses", goal={"max_cost_usd": 20_000, "on_budget": "pause"})
    await world.submit("stops", goal={"max_cost_usd": 50_000, "on_budget": "stop"})
    await turn(world, alpha)
    for _ in range(3):
        world.skip(3000)
        await alpha.agent.report()
        await world.scheduler.accrue()
        await turn(world, alpha)
    assert (await state(world, "pauses"), await state(world, "stops")) == (
        JobState.PAUSED,
        JobState.CANCELLED,
    )
    assert (await world.client.delete("/api/v1/budgets/b")).status_code in {204, 404}


async def ledger_repeats(world: World) -> None:
    """A pass more or less over the same time changes nothing."""
    await world.scheduler.accrue()
    alpha = await join(world, "alpha", 2)
    await world.submit()
    await turn(world, alpha)
    world.skip(5000)
    await alpha.agent.report()
    await world.scheduler.accrue()
    sums = (
        "SELECT job_id, category, hour, sum(slot_us) FROM charges WHERE hour < '2026-03-10 14:00Z' GROUP BY 1, 2, 3"
        " ORDER BY 1, 2, 3"
    )
    await alpha.end(exit_code=0)
    world.skip(5000)
    await world.beat()
    await world.scheduler.expire()
    await world.scheduler.accrue()
    before = await world.rows(sums)
    for _ in range(2):
        await world.scheduler.accrue()
    assert await world.rows(sums) == before != []


class Instant:
    """A simulator that knows at once; half-way it asks whether anybody still waits."""

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: OnProgress,
    ) -> SimulationResult:
        assert await wanted(0.5)
        return SimulationResult(at=snapshot.now, seeds=request.seeds, horizon_s=0.0, outcomes=[], jobs=[])


async def what_if(world: World) -> None:
    """Two questions; one is answered, one is not waited for."""
    await join(world, "alpha")
    for number in range(2):
        response = await world.client.post(
            "/api/v1/simulations",
            json={"changes": [{"change": "add_nodes", "device_kind": "cpu", "nodes": 2}]},
            headers={"Idempotency-Key": f"question-{number}"},
        )
        assert response.status_code in {200, 202}
    await ask(world, f"simulations/{response.json()['id']}/cancel")
    await world.scheduler.simulate()
    listed = (await world.client.get("/api/v1/simulations")).json()["items"]
    assert sorted(one["status"] for one in listed) == ["cancelled", "done"]


def folder(*names: str) -> bytes:
    """A bundle with these scripts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


async def old_and_gone(world: World) -> None:
    """A job with files and logs ends, and after its time nothing of it is left."""
    alpha = await join(world, "alpha", 1)
    uploads = [await world.client.post("/api/v1/bundles", content=folder(name)) for name in ("a.py", "b.py")]
    job = await world.submit(run="python a.py", bundle=uploads[0].json()["digest"])
    await turn(world, alpha)
    response = await world.client.post(
        f"/api/v1/agents/{alpha.agent.joined.node_id}/logs/{job.id}/1/0?offset=0",
        content=b"hello\n",
        headers={"Authorization": f"Bearer {alpha.agent.joined.node_token}"},
    )
    assert response.status_code == 204
    (line,) = (await world.client.get("/api/v1/jobs/job/logs")).json()["items"]
    assert line["text"] == "hello\n"
    await alpha.end(exit_code=0)
    world.skip(100 * 86400)
    await world.scheduler.retain()
    await world.scheduler.retain()
    assert await world.rows("SELECT digest FROM bundles") == []
    assert await world.rows("SELECT id FROM jobs") == []


_machines = itertools.count()


@dataclass
class MortalCloud(Cloud):
    """A provider that is asked by a service that dies before a call, or before it hears the answer."""

    step: Callable[[], None] = lambda: None

    def stumble(self) -> None:
        self.step()


async def rented(world: World) -> None:
    """A machine is rented for a job, joins, runs it, idles and is given back."""
    cloud = MortalCloud(world.clock.now, step=world.mortal.step)
    cloud.sells.append(small_offer(world.clock.now(), devices=1))
    renting = Renting(
        providers=[cloud],
        rules=RentalRules(idle_s=0.0),
        patience=Patience(),
        public_url="http://headway",
        join_secret=JOIN_TOKEN,
        policies=POLICIES,
        new_machine_id=lambda: f"m{next(_machines):08}",
    )
    memory = [Memory()]
    world.mortal.forget.append(lambda: memory.__setitem__(0, Memory()))

    async def one_pass() -> None:
        result = await rent(world.transactions, renting, memory[0], world.service.launch, now=world.clock.now)
        memory[0] = result.memory

    async def passes(count: int = 1) -> None:
        for _ in range(count):
            await world.mortal.persist(one_pass)

    await world.submit(market="spot")
    await passes(2)
    (instance,) = cloud.instances
    response = await world.client.post(
        "/api/v1/agents",
        json=join_body(instance.join.node_name, 1),
        headers={"Authorization": f"Bearer {instance.join.token}"},
    )
    assert response.status_code == 201, response.text
    joined = JoinReply.model_validate_json(response.content)
    hand = Hand(world, Agent(world.client, world.service.redis, instance.join.node_name, joined))
    await turn(world, hand)
    await passes()
    await hand.end(exit_code=0)
    world.skip(120)
    await hand.agent.report()
    await passes(2)
    assert cloud.running() == []
    await passes(2)
    assert len(cloud.instances) == 1
    leases = await world.rows(
        "SELECT external_id, billed_from, billed_to FROM machines WHERE external_id IS NOT NULL"
    )
    assert leases == [(instance.external_id, instance.began, instance.ended)]


THINGS = (money, ledger_repeats, old_and_gone, rented)
