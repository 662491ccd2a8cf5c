"""An agent answers every stop with `released`, however late the stop reaches it."""

from __future__ import annotations

from datetime import timedelta

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_faults import beat, expire
from tests.integration.service.test_life_of_a_job import start, stop


async def test_a_job_that_has_ended_is_not_ended_again(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await harness.post("jobs/job/cancel")
    await harness.post("jobs/job/cancel", {"force": True})
    await stop(agent, run)
    await agent.report(entry("released", run))
    assert (await harness.job()).state is JobState.CANCELLED


async def test_a_paused_job_stays_paused(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await harness.post("jobs/job/pause")
    await stop(agent, run)
    await agent.report(entry("released", run))
    assert (await harness.job()).state is JobState.PAUSED


async def test_a_failure_is_counted_once(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await agent.report(entry("rank_exited", run, rank=0, exit_code=75), entry("released", run))
    await agent.report(entry("released", run))
    job = await harness.job()
    assert (job.state, job.infrastructure_failures) == (JobState.RECOVERING, 1)


async def test_a_lost_node_that_is_back_releases_without_effect(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await beat(harness, harness.clock.now())
    harness.clock.skipped += timedelta(seconds=20)
    await beat(harness, harness.clock.now())
    assert await expire(harness, harness.clock.now()) == ["alpha"]
    await agent.report(holding=[{"job_id": run.job_id, "generation": 1}])
    await stop(agent, run)
    job = await harness.job()
    assert (job.state, job.infrastructure_failures) == (JobState.RECOVERING, 1)
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert node["state"] == NodeState.READY
    assert (await start(harness, agent)).generation == 2
