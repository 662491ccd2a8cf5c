"""Jobs are started again after some failures, and as often as they may be."""

from __future__ import annotations

from datetime import timedelta

from headway.contract.views.jobs import JobState
from tests.integration.service.conftest import Harness, entry, run_of
from tests.integration.service.test_life_of_a_job import message, progress, start


async def test_a_script_that_stops_unasked_uses_up_its_retries(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(retry={"infrastructure": 2})
    for failures in (1, 2, 3):
        run = await start(harness, agent)
        await agent.report(entry("rank_exited", run, rank=0, exit_code=143), entry("released", run))
        job = await harness.job()
        assert job.infrastructure_failures == failures
        harness.clock.skipped += timedelta(seconds=60)
    assert job.state is JobState.FAILED
    assert "143" in job.message


async def test_an_agent_that_leaves_with_its_ranks_uses_up_none(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 2})
    run = await start(harness, agent)
    await agent.report(
        entry("rank_exited", run, rank=0, exit_code=143, stopped_by_agent=True),
        entry("rank_exited", run, rank=1, exit_code=143),
        entry("released", run),
    )
    job = await harness.job()
    assert (job.state, job.infrastructure_failures, job.preemptions) == (JobState.RECOVERING, 0, 1)


async def test_training_that_begins_again_counts_what_it_lost(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    saved = message("checkpointed", 1, uri="file:///c", samples=320, size_bytes=1, save_s=0.1, total_s=0.1)
    news = (message("first_step", 1, samples=32), progress(1, samples=640), saved)
    await agent.report(*(entry("rank_message", run, **one) for one in news))
    await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **message("first_step", 2, samples=32)))
    done = (await harness.job()).progress
    assert (done.samples, done.checkpoint_samples, done.lost_samples) == (32, None, 640)
    events = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    assert [one["data"]["lost_samples"] for one in events if one["kind"] == "first_step"] == [0, 640]


async def test_ranks_that_lose_their_peers_to_a_resize_have_not_failed(harness: Harness) -> None:
    alpha, beta = await harness.join("alpha", slots=1), await harness.join("beta", slots=1)
    await harness.submit(elastic={"min": 1, "max": 2})
    await harness.post("jobs/job/resize", {"slots": 2})
    await harness.turn()
    runs = {agent.name: run_of(await agent.commands()) for agent in (alpha, beta)}
    for agent in (alpha, beta):
        await agent.report(entry("ranks_started", runs[agent.name], how="spawn"))
    await alpha.report(entry("rank_message", runs["alpha"], **message("first_step", 1, samples=32)))
    await harness.post("jobs/job/resize", {"slots": 1})
    await harness.turn()
    assert (await harness.job()).state is JobState.RESIZING
    for agent, end in ((alpha, {"signal": 15, "stopped_by_agent": True}), (beta, {"exit_code": 1})):
        run = runs[agent.name]
        await agent.report(entry("rank_exited", run, rank=run.ranks[0].rank, **end), entry("released", run))
    job = await harness.job()
    assert (job.state, job.generation, job.user_errors) == (JobState.STARTING, 2, 0)
