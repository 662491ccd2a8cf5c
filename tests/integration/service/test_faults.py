"""Nodes that vanish, reports that repeat, stale writers, stores that go away."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.adapters.postgres.engine.schema import migrate
from service.api.http.pressure import SHARES, Traffic
from service.domain.nodes.silence import SilenceRule
from service.main import Service, main
from service.settings import SettingsError
from service.usecases.nodes.expire import expire_nodes
from tests.integration.service.conftest import (
    Harness,
    entry,
    harness_of,
    like_the_first_node,
    make_settings,
    run_of,
)
from tests.integration.service.test_life_of_a_job import message, progress, start, stop


async def beat(harness: Harness, at: datetime) -> None:
    async with harness.service.database.begin() as tx:
        await tx.nodes.beat("api", at, gap_s=60.0)


async def expire(harness: Harness, at: datetime) -> list[str]:
    service = harness.service
    return await expire_nodes(
        service.database, silence=SilenceRule(15.0, 300.0), launch=service.launch, now=at
    )


async def test_a_silent_node_is_lost_and_its_job_recovers_elsewhere(harness: Harness) -> None:
    alpha = await harness.join("alpha", slots=1)
    await harness.submit()
    run = await start(harness, alpha)
    await beat(harness, harness.clock.now())
    harness.clock.skipped += timedelta(seconds=20)
    await beat(harness, harness.clock.now())
    assert await expire(harness, harness.clock.now()) == ["alpha"]
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.NODE_LOST)
    beta = await harness.join("beta", slots=1)
    again = await start(harness, beta)
    assert again.generation == 2
    # The lost node comes back and still runs generation 1: it must stop it, and gets no job before.
    holding = [{"job_id": job.id, "generation": 1}]
    reply = await alpha.report(holding=holding)
    assert [(one.job_id, one.generation) for one in reply.stop] == [(job.id, 1)]
    nodes = {one["name"]: one["state"] for one in (await harness.client.get("/api/v1/nodes")).json()["items"]}
    assert nodes["alpha"] == NodeState.LOST
    await alpha.report(entry("rank_message", run, **progress(1, samples=999_999)))
    assert (await harness.job()).progress.samples == 0, "a stale generation was believed"
    nodes = {one["name"]: one["state"] for one in (await harness.client.get("/api/v1/nodes")).json()["items"]}
    assert nodes["alpha"] == NodeState.READY


async def test_in_a_large_cluster_a_node_may_be_silent_for_longer(harness: Harness) -> None:
    await harness.join("alpha")
    began = harness.clock.now()
    await like_the_first_node(harness, 2000, seen_later_s=5)
    for seconds, lost in ((0, []), (16, []), (19, ["alpha"])):
        await beat(harness, began + timedelta(seconds=seconds))
        assert await expire(harness, began + timedelta(seconds=seconds)) == lost


async def test_a_cordoned_node_is_still_cordoned_when_it_comes_back(harness: Harness) -> None:
    agent = await harness.join()
    await harness.post("nodes/alpha/cordon")
    await beat(harness, harness.clock.now())
    harness.clock.skipped += timedelta(seconds=20)
    await beat(harness, harness.clock.now())
    assert await expire(harness, harness.clock.now()) == ["alpha"]
    await agent.report()
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert node["state"] == NodeState.CORDONED


async def test_silence_means_nothing_while_no_api_could_hear(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await start(harness, agent)
    base = datetime.now(UTC)
    assert await expire(harness, base + timedelta(seconds=3600)) == []
    await beat(harness, base)
    await beat(harness, base + timedelta(seconds=3600))  # a gap: up again only since now
    assert await expire(harness, base + timedelta(seconds=3601)) == []


async def run_sql(harness: Harness, statement: str, **values: Any) -> None:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text(statement), values)


async def test_an_overloaded_service_declares_nobody_lost(harness: Harness) -> None:
    """Its agents speak, and are not heard: that is not their silence."""
    agent = await harness.join()
    async with harness.service.database.begin() as tx:
        await tx.nodes.lock("alpha")
        path = f"/api/v1/agents/{agent.joined.node_id}/reports"
        said: dict[str, Any] = {
            "json": {"instance": "instance-alpha"},
            "headers": {"Authorization": f"Bearer {agent.joined.node_token}"},
        }
        reports = [
            asyncio.create_task(agent.client.post(path, **said)) for _ in range(SHARES[Traffic.NEWS] + 1)
        ]
        (refused, *_), _ = await asyncio.wait(reports, return_when=asyncio.FIRST_COMPLETED)
        assert (await refused).status_code == 429
    await asyncio.gather(*reports)
    await harness.service.beat()
    await run_sql(harness, "UPDATE api_processes SET up_since = up_since - interval '1 hour'")
    await run_sql(harness, "UPDATE nodes SET seen_at = seen_at - interval '20 s'")
    now = datetime.now(UTC)
    assert await expire(harness, now) == []
    later = now + timedelta(seconds=16)
    await run_sql(harness, "UPDATE api_processes SET seen_at = :later", later=later)
    assert await expire(harness, later) == ["alpha"], "heard well for long enough"


async def test_of_silent_nodes_one_that_somebody_works_on_is_passed_over(harness: Harness) -> None:
    for name in ("busy", "gone", "lost"):
        await harness.join(name)
    await beat(harness, harness.clock.now() - timedelta(seconds=20))
    await beat(harness, harness.clock.now())
    await run_sql(harness, "UPDATE nodes SET seen_at = seen_at - interval '20 s'")
    async with harness.service.database.begin() as tx:
        await tx.nodes.lock("busy")
        assert set(await expire(harness, harness.clock.now())) == {"gone", "lost"}
    assert await expire(harness, harness.clock.now()) == ["busy"]


async def test_a_repeated_report_counts_once(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    item = entry("rank_message", run, **message("metrics", 1, epoch=0, samples=32, values={"loss": 1.5}))
    stamped = [{"sequence": 10_000, "at": datetime.now(UTC).isoformat(), **item}]
    for _ in range(3):
        await agent.send(stamped, [])
    points = (await harness.client.get("/api/v1/jobs/job/metrics")).json()["items"]
    assert [(one["name"], one["value"]) for one in points] == [("loss", 1.5)]


async def test_unacknowledged_commands_are_pushed_again(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    await harness.service.redis.flushall()
    due = datetime.now(UTC) + timedelta(seconds=6)
    async with harness.service.database.begin() as tx:
        again = await tx.commands.take_due(due, 5.0, 10)
        delivery = await tx.commands.begin_delivery(due)
    assert await harness.scheduler.queue.push(again, delivery)
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="spawn"))
    async with harness.service.database.begin() as tx:
        assert await tx.commands.take_due(due + timedelta(seconds=60), 5.0, 10) == []


async def test_infrastructure_retries_run_out(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(retry={"infrastructure": 1})
    for generation in (1, 2):
        run = await start(harness, agent)
        assert run.generation == generation
        await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))
    job = await harness.job()
    assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.RANK_LOST, 2)


async def test_a_start_that_fails_says_why(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(
        entry("start_failed", run, message="train.py: no such file", retryable=False), entry("released", run)
    )
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.START_FAILED)
    assert "no such file" in job.message
    assert "alpha" in job.message


async def test_finishing_while_asked_to_stop_is_success(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=32)))
    await harness.post("jobs/job/resize", {"slots": 2})
    await harness.turn()
    await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job()).state is JobState.SUCCEEDED
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert [slot["job_id"] for slot in node["slots"]] == [None, None]


async def test_a_plain_script_that_saves_and_exits_0_when_stopped_goes_on(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=1, plain=True)))
    await harness.post("jobs/job/resize", {"slots": 2})
    await harness.turn()
    await stop(agent, run, exit_code=0)
    assert (await harness.job()).state is JobState.STARTING


async def test_pause_during_a_resize_wins(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=32)))
    await harness.post("jobs/job/resize", {"slots": 2})
    await harness.turn()
    await harness.post("jobs/job/pause")
    await stop(agent, run)
    job = await harness.job()
    assert (job.state, job.size) == (JobState.PAUSED, 0)
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert [slot["job_id"] for slot in node["slots"]] == [None, None]


async def test_postgres_goes_away_and_comes_back(tmp_path: Path, redis_url: str) -> None:
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as postgres:
        settings = make_settings(postgres.url(), redis_url, f"file://{tmp_path}/storage")
        service = Service(settings)
        await migrate(service.database.engine)
        await service.close()
        async with harness_of(settings) as harness:
            await harness.submit()
            postgres.stop()
            for response in (
                await harness.client.get("/api/v1/jobs"),
                await harness.post("jobs", {"name": "other", "run": "x"}),
                await harness.client.get("/readyz"),
            ):
                assert response.status_code == 503, response.text
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["code"] == "unavailable"
            assert (await harness.client.get("/livez")).status_code == 200
            postgres.start()
            assert (await harness.job()).state is JobState.PENDING


async def test_redis_goes_away_and_comes_back(tmp_path: Path, database_url: str) -> None:
    with EmbeddedRedis(tmp_path / "redis") as redis:
        settings = make_settings(database_url, redis.url(), f"file://{tmp_path}/storage")
        async with harness_of(settings) as harness:
            agent = await harness.join()
            redis.stop()
            await harness.submit()
            await harness.scheduler.round()
            with pytest.raises(Exception, match="Redis does not answer"):
                await harness.scheduler.deliver()
            assert (await harness.client.get("/readyz")).status_code == 503
            redis.start()
            due = datetime.now(UTC) + timedelta(seconds=6)
            async with harness.service.database.begin() as tx:
                delivery = await tx.commands.begin_delivery(due)
                await harness.scheduler.queue.push(await tx.commands.take_due(due, 5.0, 10), delivery)
            assert run_of(await agent.commands()).job_name == "job"


async def test_stores_that_do_not_answer_at_start(database_url: str, redis_url: str) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    service = Service(make_settings(nowhere, "redis://127.0.0.1:1", "memory:///"))
    with pytest.raises(SettingsError, match=r"Postgres does not answer.*Redis does not answer"):
        await service.check()
    await service.close()


def test_missing_settings_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_DATABASE_URL", raising=False)
    assert main(["api"]) == 1
    assert "HEADWAY_" in capsys.readouterr().err


async def test_metrics_say_that_nobody_leads(harness: Harness) -> None:
    assert "\nheadway_leader_term 0.0\n" in (await harness.client.get("/metrics")).text
    leadership = PostgresLeadership(harness.service.settings.database_url, "leader")
    await leadership.acquire()
    await leadership.resign()
    assert await leadership.acquire() == 2
    await leadership.resign()
    said = (await harness.client.get("/metrics")).text
    assert "\nheadway_leader_term 2.0\n" in said
    assert "\nheadway_leader_silent_seconds " in said
