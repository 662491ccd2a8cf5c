"""An agent that has joined and means harm: whatever it does with its credentials, nothing of others changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState, JobView
from service.usecases.storage.bundles import bundle_key
from tests.integration.service.conftest import Agent, Harness, entry, run_of
from tests.integration.service.lives_of_things import folder


@dataclass
class Scene:
    """A job that trains on an honest node, and a rogue one with a job of its own."""

    harness: Harness
    honest: Agent
    rogue: Agent
    job: JobView
    run: RunCommand
    own: RunCommand
    bundle: str

    async def ask(
        self, path: str, body: Any = None, *, token: str | None = None, **more: Any
    ) -> httpx.Response:
        """As the rogue agent."""
        headers = {"Authorization": f"Bearer {token or self.rogue.joined.node_token}"}
        return await self.harness.client.request(
            more.pop("method", "POST"), f"/api/v1/{path}", json=body, headers=headers, **more
        )

    async def say(self, *entries: dict[str, Any], **changes: Any) -> httpx.Response:
        """A report of the rogue agent."""
        stamped = [
            {"sequence": next(self.rogue.clock), "at": datetime.now(UTC).isoformat(), **one}
            for one in entries
        ]
        body = {"instance": "instance-rogue", "entries": stamped, **changes}
        return await self.ask(f"agents/{self.rogue.joined.node_id}/reports", body)

    async def picture(self) -> Any:
        """Return the state that a rogue agent must not change."""
        job = await self.harness.job(self.job.id)
        events = (await self.harness.client.get(f"/api/v1/jobs/{self.job.id}/events")).json()["items"]
        return job.state, job.generation, job.progress, [one["kind"] for one in events]


@pytest_asyncio.fixture
async def scene(harness: Harness) -> AsyncIterator[Scene]:
    honest = await harness.join("honest", slots=1)
    bundle = (await harness.client.post("/api/v1/bundles", content=folder("a.py"))).json()["digest"]
    job = await harness.submit("theirs", run="python a.py", bundle=bundle)
    await harness.turn()
    run = run_of(await honest.commands())
    await honest.report(entry("ranks_started", run, how="zygote"))
    rogue = await harness.join("rogue", slots=1)
    await harness.submit("own")
    await harness.turn()
    own = run_of(await rogue.commands())
    assert (await harness.job(job.id)).state is JobState.RUNNING
    yield Scene(harness, honest, rogue, job, run, own, bundle)


def message(kind: str, run: RunCommand, **fields: Any) -> dict[str, Any]:
    said = {"type": kind, "rank": 0, "generation": run.generation, "at_s": 1.0, "samples": 64, **fields}
    return entry("rank_message", run, message=said)


PROGRESS = {
    "epoch": 0, "total_samples": 64_000, "steps": 10, "step_s_sum": 1.0, "step_s_squares": 0.1, "global_batch": 64,
    "local_batch": 64, "accumulation": 1, "sync_s_sum": 0.0,
}  # fmt: skip


async def test_it_speaks_for_no_rank_of_another_node(scene: Scene) -> None:
    before = await scene.picture()
    theirs = scene.run
    lies = [
        entry("rank_exited", theirs, rank=0, exit_code=1, log_tail=["gotcha"]),
        entry("rank_exited", theirs, rank=0, exit_code=0, completed=True),
        entry("start_failed", theirs, message="gotcha", retryable=False),
        entry("ranks_hung", theirs, silent_s=600.0, usual_s=0.1),
        entry("released", theirs),
        entry("ranks_started", theirs, how="zygote"),
        message("progress", theirs, **PROGRESS),
        message("checkpointed", theirs, uri="file:///gotcha", size_bytes=1, save_s=0.1, total_s=0.1),
        message("completed", theirs),
        message("metrics", theirs, epoch=0, values={"loss": 0.0}),
    ]
    for lie in lies:
        assert (await scene.say(lie)).status_code == 200, "it is taken note of, and nothing comes of it"
    assert (await scene.say(*lies)).status_code == 200
    await scene.harness.turn()
    assert await scene.picture() == before


async def test_a_start_is_not_confirmed_by_who_is_not_part_of_it(scene: Scene) -> None:
    harness = scene.harness
    third = await harness.join("third", slots=1)
    job = await harness.submit("third-job")
    await harness.turn()
    run = run_of(await third.commands())
    await scene.say(entry("ranks_started", run, how="zygote"))
    assert (await harness.job(job.id)).state is JobState.STARTING


async def test_it_reports_for_no_other_node_and_as_no_other_instance(scene: Scene) -> None:
    path = f"agents/{scene.honest.joined.node_id}/reports"
    assert (await scene.ask(path, {"instance": "instance-honest"})).status_code == 401
    own = f"agents/{scene.rogue.joined.node_id}/reports"
    assert (await scene.ask(own, {"instance": "instance-honest"})).status_code == 401
    assert (await scene.ask("agents/n00000000/reports", {"instance": "instance-rogue"})).status_code == 401
    for action in ("credentials", "storage", "secrets"):
        body = {"job_id": scene.job.id, "generation": 1}
        assert (await scene.ask(f"agents/{scene.honest.joined.node_id}/{action}", body)).status_code == 401


async def test_it_replays_no_old_generation(scene: Scene) -> None:
    """Not even of its own job: what it ran is over, and somebody else may run it now."""
    own = scene.own
    await scene.say(entry("ranks_started", own, how="zygote"))
    await scene.say(entry("rank_exited", own, rank=0, exit_code=75), entry("released", own))
    await scene.harness.turn()
    before = await scene.harness.job(own.job_id)
    old = [entry("rank_exited", own, rank=0, exit_code=1), message("completed", own)]
    await scene.say(*old)
    reply = await scene.say(*old, holding=[{"job_id": own.job_id, "generation": own.generation}])
    assert reply.json()["stop"] == [{"job_id": own.job_id, "generation": own.generation}]
    assert await scene.harness.job(own.job_id) == before


async def test_it_acknowledges_no_commands_of_others(scene: Scene) -> None:
    await scene.harness.post(f"jobs/{scene.job.id}/cancel", {})
    await scene.harness.turn()
    commands = await scene.honest.commands()
    assert commands
    await scene.say(acknowledged=[one.command_id for one in commands])
    async with scene.harness.service.database.begin() as tx:
        due = await tx.commands.take_due(scene.harness.clock.now(), -1.0, 100)
    assert {one.node_id for one in due} >= {scene.honest.joined.node_id}


async def test_it_gets_nothing_of_a_job_that_it_does_not_run(scene: Scene) -> None:
    rogue = scene.rogue.joined.node_id
    wanted = {"job_id": scene.job.id, "generation": scene.run.generation}
    for action in ("storage", "secrets"):
        answer = await scene.ask(f"agents/{rogue}/{action}", wanted)
        assert answer.status_code == 404, answer.text
    assert (await scene.ask(f"bundles/{scene.bundle}", method="GET")).status_code == 404
    assert (await scene.ask(f"bundles/{scene.bundle}", method="HEAD")).status_code == 404
    honest = scene.honest.joined
    theirs = await scene.ask(f"bundles/{scene.bundle}", method="GET", token=honest.node_token)
    assert theirs.content == await scene.harness.service.storage.get(bundle_key(scene.bundle))
    mine = await scene.ask(f"agents/{rogue}/storage", {"job_id": scene.own.job_id, "generation": 1})
    assert mine.json() == {"credentials": None, "ticket": None}, "a folder needs no keys"
    assert (await scene.ask(f"agents/{rogue}/storage", {**wanted, "generation": 0})).status_code == 422
    assert (
        await scene.ask(f"agents/{rogue}/storage", {"job_id": "../x", "generation": 1})
    ).status_code == 422


@pytest.mark.parametrize("path", ["jobs", "nodes", "events", "join-tokens", "budgets", "machines"])
async def test_it_is_no_user(scene: Scene, path: str) -> None:
    assert (await scene.ask(path, method="GET")).status_code in {401, 404}
    assert (await scene.ask(path, {})).status_code in {401, 404, 405}


async def test_it_writes_no_logs_of_others(scene: Scene) -> None:
    async def ship(job: str, generation: int) -> int:
        path = f"/api/v1/agents/{scene.rogue.joined.node_id}/logs/{job}/{generation}/0?offset=0"
        headers = {"Authorization": f"Bearer {scene.rogue.joined.node_token}"}
        return (await scene.harness.client.post(path, content=b"gotcha\n", headers=headers)).status_code

    assert await ship(scene.job.id, scene.run.generation) == 404
    assert await ship(scene.own.job_id, scene.own.generation + 1) == 404
    assert await ship(scene.own.job_id, 2**40) == 422
    assert await ship(scene.own.job_id, scene.own.generation) == 204
    assert (await scene.harness.client.get("/api/v1/jobs/theirs/logs")).json()["items"] == []


async def test_it_reads_its_own_stream_and_nothing_else_of_redis(scene: Scene) -> None:
    theirs = scene.honest.joined.stream
    async with Redis.from_url(scene.rogue.joined.redis_url) as client:
        assert await client.xread({scene.rogue.joined.stream: "0-0"})
        for refused in (
            client.xread({theirs: "0-0"}),
            client.xdel(theirs, "1-0"),
            client.xadd(theirs, {"command": "gotcha"}),
            client.xrange(theirs),
            client.keys("*"),
            client.flushall(),
            client.config_get("*"),
            client.eval("return 1", 0),
            client.publish("headway:bells", "round|"),
            client.acl_list(),
        ):
            with pytest.raises(NoPermissionError):
                await refused
    assert await scene.honest.redis.xlen(theirs) == 1


async def test_a_flood_of_it_is_only_its_own(scene: Scene) -> None:
    """Thousands of lies at once: the honest node is heard, and its job trains on."""
    before = await scene.picture()
    lies = [scene.say(*(message("progress", scene.run, **PROGRESS) for _ in range(100))) for _ in range(20)]
    answers = await asyncio.gather(*lies, scene.honest.report())
    assert {one.status_code for one in answers[:-1] if isinstance(one, httpx.Response)} <= {200, 429}
    too_many = [entry("released", scene.run, sequence=number) for number in range(10_001)]
    assert (await scene.say(*too_many)).status_code == 422
    assert await scene.picture() == before
