"""A failover of the database to a replica that lacks the latest commits, while Redis and the agents have moved on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.domain.shared.errors import Superseded
from service.usecases.rounds.deliver import deliver
from service.usecases.upkeep.restore import GENERATIONS_LEFT_OUT
from tests.integration.service.conftest import Harness, entry, harness_of
from tests.integration.service.test_backup import held, start

_numbers = itertools.count()


async def replica_of(harness: Harness, postgres: EmbeddedPostgres) -> str:
    """Copy the database as it is now. Return the copy's URL."""
    await harness.service.database.close()  # a copy needs a database without sessions
    name = harness.service.settings.database_url.partition("?")[0].rpartition("/")[2]
    return postgres.create_database(f"late_replica_{next(_numbers)}", template=name)


@asynccontextmanager
async def failed_over(harness: Harness, url: str) -> AsyncIterator[Harness]:
    """The service on the copy, with the same Redis and storage."""
    async with harness_of(replace(harness.service.settings, database_url=url)) as after:
        yield after


async def node_state(harness: Harness) -> str:
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    state: str = node["state"]
    return state


async def test_start_that_the_replica_lacks_is_stopped_and_its_generation_is_not_repeated(
    harness: Harness, postgres: EmbeddedPostgres
) -> None:
    agent = await harness.join()
    kept = await harness.submit("kept", elastic={"min": 1, "max": 1})
    url = await replica_of(harness, postgres)
    lost = await harness.submit("lost", elastic={"min": 1, "max": 1})
    await harness.turn()
    runs = {one.job_id: one for one in await agent.commands()}
    assert set(runs) == {kept.id, lost.id}
    assert runs[kept.id].generation == 1
    async with failed_over(harness, url) as after:
        agent.client = after.client
        await after.scheduler.deliver()
        assert await node_state(after) == NodeState.LOST
        assert await after.service.redis.xlen(agent.joined.stream) == 0
        await after.turn()
        assert (await after.job("kept")).state is JobState.PENDING, "nothing starts where something may run"
        holding = [{"job_id": one.job_id, "generation": one.generation} for one in runs.values()]
        reply = await agent.report(holding=holding)
        assert {(one.job_id, one.generation) for one in reply.stop} == {(kept.id, 1), (lost.id, 1)}
        assert await node_state(after) == NodeState.LOST
        await agent.report()
        assert await node_state(after) == NodeState.READY
        await after.turn()
        (run,) = await agent.commands()
        assert (run.job_id, run.generation) == (kept.id, GENERATIONS_LEFT_OUT + 1)
        assert (await after.client.get("/api/v1/jobs/lost")).status_code == 404


async def test_running_job_restarts_without_a_retry_and_its_event_names_the_time(
    harness: Harness, postgres: EmbeddedPostgres
) -> None:
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    url = await replica_of(harness, postgres)
    await harness.scheduler.deliver()
    async with failed_over(harness, url) as after:
        agent.client = after.client
        await after.scheduler.deliver()
        job = await after.job("kept")
        assert (job.state, job.infrastructure_failures) == (JobState.RECOVERING, 0)
        events = (await after.client.get("/api/v1/jobs/kept/events")).json()["items"]
        (event,) = [one for one in events if one["kind"] == "restored"]
        assert "the database lost commits" in event["message"]
        (check,) = [
            one
            for one in (await after.client.get("/api/v1/diagnosis")).json()["checks"]
            if one["name"] == "restore"
        ]
        assert check["level"] == "warn"
        await agent.report(entry("released", run), holding=[])
        for _ in range(3):
            await after.turn()
        (again,) = await agent.commands()
        assert again.generation > GENERATIONS_LEFT_OUT
        await agent.report(entry("ranks_started", again, how="zygote"), holding=[held(again)])  # type: ignore[arg-type]
        await after.turn()
        assert (await after.job("kept")).generation == again.generation, "it is noticed once"


async def test_replica_that_lacks_nothing_restarts_nothing(
    harness: Harness, postgres: EmbeddedPostgres
) -> None:
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    url = await replica_of(harness, postgres)
    async with failed_over(harness, url) as after:
        agent.client = after.client
        await after.turn()
        await agent.report(holding=[held(run)])
        assert await node_state(after) == NodeState.READY
        assert (await after.job("kept")).generation == run.generation


async def test_late_push_of_a_former_leader_restarts_nothing(harness: Harness) -> None:
    """It committed a delivery, stood still, and another leader delivered meanwhile."""
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    queue = harness.scheduler.queue
    async with harness.service.database.begin() as tx:
        late = await tx.commands.begin_delivery(harness.clock.now())
    await harness.scheduler.deliver()
    assert not await queue.push([], late)
    await agent.report(holding=[held(run)])
    assert await node_state(harness) == NodeState.READY
    await harness.scheduler.deliver()
    assert (await harness.job("kept")).generation == run.generation


async def test_recovery_is_the_leaders_and_leaves_its_term(
    harness: Harness, postgres: EmbeddedPostgres
) -> None:
    await harness.join()
    await harness.submit("kept")
    url = await replica_of(harness, postgres)
    await harness.turn()
    async with failed_over(harness, url) as after:
        service, now = after.service, after.clock.now()
        leadership = PostgresLeadership(url, service.holder)
        term = await leadership.acquire()
        assert term is not None
        with pytest.raises(Superseded):
            await deliver(
                service.database.of_term(term + 1), after.scheduler.queue, launch=service.launch, now=now
            )
        assert await node_state(after) == NodeState.READY
        await deliver(service.database.of_term(term), after.scheduler.queue, launch=service.launch, now=now)
        assert await node_state(after) == NodeState.LOST
        async with service.database.engine.begin() as connection:
            assert (await connection.execute(text("SELECT term FROM leadership"))).scalar_one() == term
        await leadership.resign()


async def test_generation_that_the_database_never_assigned_is_logged_and_restarts_nothing(
    harness: Harness,
) -> None:
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    newer = {"job_id": run.job_id, "generation": run.generation + 1}
    with capture_logs() as logs:
        reply = await agent.report(holding=[held(run), newer, {"job_id": "unknown", "generation": 9}])
    assert {(one.job_id, one.generation) for one in reply.stop} == {(run.job_id, 2), ("unknown", 9)}
    errors = [one for one in logs if one["event"] == "generation_never_assigned"]
    assert [(one["job"], one["generation"]) for one in errors] == [(run.job_id, 2)]
    assert await node_state(harness) == NodeState.READY
    assert (await harness.job("kept")).generation == run.generation
