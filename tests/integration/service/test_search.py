"""A job that searches its configuration, and forecasts that are scored at its end, over the real service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headway.contract.agents import BatchOrder
from headway.contract.views.forecasts import ForecastView, SearchPhase, SearchView
from headway.contract.views.jobs import JobState
from service.usecases.ports.facts import WakeUp
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness, entry, harness_of, make_settings
from tests.integration.service.test_life_of_a_job import progress, start, stop

TOTAL = 1_000_000


async def begin(cast: Cast, **goal: Any) -> None:
    """A job that may have one slot or two, and that trains on what its search wants first."""
    await cast.harness.submit(
        elastic={"min": 1, "max": 2}, batch={"global": 32}, goal={"search": "full", **goal}
    )
    await cast.turn()
    (run,) = cast.started(1).values()
    for node in cast.started(1):
        await cast.news(node, cast.entry(run.generation, "ranks_started", how="zygote"))
    await cast.say((1, 0), "first_step", 1, samples=32, live=True)


async def measure(cast: Cast, generation: int, step_s: float, steps: int = 25, samples: int = 2_000) -> None:
    told = progress(generation, samples, steps, step_s)["message"]
    fields = {name: told[name] for name in told if name not in {"type", "rank", "generation", "at_s"}}
    await cast.say((1, 0), "progress", generation, 0, **{**fields, "total_samples": TOTAL})


async def search(cast: Cast) -> SearchView:
    found = (await cast.job()).progress.search
    assert found is not None
    return found


async def test_it_visits_the_other_size_and_goes_back_to_the_better_one(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(a=2)
    await begin(cast, objective="time")
    assert (await cast.job()).size == 1
    seen = await search(cast)
    assert (seen.phase, seen.slots, seen.reason) == (SearchPhase.VISITING, 1, "visit 1 of 2")

    await measure(cast, 1, 0.1)
    await cast.turn()
    seen = await search(cast)
    assert (seen.phase, seen.slots, seen.visited) == (SearchPhase.VISITING, 2, 1)
    found = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    assert any("from 1 cpu slot to 2 cpu slots: search: visit 2 of 2" in one["message"] for one in found)
    await cast.ready((2, 1))
    await cast.switch(2)
    assert (await cast.job()).size == 2

    await measure(cast, 2, 0.2, samples=4_000)
    await cast.turn()
    seen = await search(cast)
    assert (seen.phase, seen.slots, seen.visited, seen.visits) == (SearchPhase.SETTLED, 1, 2, 2)
    assert "the fastest known configuration" in seen.reason
    assert seen.overhead_share is not None
    assert 0 < seen.overhead_s < seen.time_s
    await cast.leave((2, 1), 3, rank=1)
    await cast.switch(3)
    assert (await cast.job()).size == 1

    told = [one["data"]["phase"] for one in await cast.events("search")]
    assert told == ["visiting", "visiting", "settled"]
    await cast.turn()
    assert len(await cast.events("search")) == 3, "nothing is told twice"
    shown = await harness.client.get("/api/v1/jobs/job/forecast")
    assert ForecastView.model_validate_json(shown.content).search == seen


async def test_the_news_of_a_visit_wake_the_scheduler(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(a=2)
    await begin(cast)
    async with harness.service.wake_ups.heard((WakeUp.ROUND, "")) as rung:
        await measure(cast, 1, 0.1)
        async with asyncio.timeout(60):
            await rung.wait()


async def test_a_fixed_size_ends_the_search_and_says_so(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(a=2)
    await begin(cast)
    await cast.harness.post("jobs/job/resize", {"slots": 1})
    await cast.turn()
    seen = await search(cast)
    assert (seen.phase, seen.slots) == (SearchPhase.OFF, None)
    assert "fixed at 1" in seen.reason


async def test_a_wrong_search_is_refused(harness: Harness) -> None:
    spec = {"name": "job", "run": "python -V", "goal": {"search": "everything"}}
    response = await harness.post("jobs", spec)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "goal.search"


async def test_forecasts_are_kept_at_their_marks_and_scored_at_the_end(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}", usd_per_slot_h={"cpu": 3600.0})
    async with harness_of(settings) as harness:
        agent = await harness.join()
        await harness.submit("gpt-1", batch={"global": 32})
        run = await start(harness, agent, "gpt-1")
        await agent.report(entry("rank_message", run, **progress(run.generation, 900, 200, 0.1)))
        await harness.turn()
        assert (await harness.job("gpt-1")).progress.forecasts == [], "no tenth is done"
        await agent.report(entry("rank_message", run, **progress(run.generation, 2_000, 200, 0.1)))
        await harness.turn()
        await harness.turn()
        (kept,) = (await harness.job("gpt-1")).progress.forecasts
        assert (kept.share, kept.samples, kept.slots, kept.took_s) == (0.1, 2_000, 1, None)
        assert 24 < kept.time_s < 26
        assert kept.cost_usd == kept.time_s, "a slot costs a dollar a second"
        await stop(agent, run, 0, completed=True)
        job = await harness.job("gpt-1")
        assert job.state is JobState.SUCCEEDED
        (kept,) = job.progress.forecasts
        assert kept.took_s is not None
        assert kept.cost_was_usd is not None
        assert 0 < kept.took_s < 10
        assert abs(kept.cost_was_usd - kept.took_s) < 1e-6
        found = (await harness.client.get("/api/v1/jobs/gpt-1/events")).json()["items"]
        (scored,) = [one for one in found if one["kind"] == "forecast_scored"]
        assert "forecast after 10% of the work: 25." in scored["message"]

        # Its class has shown speed and size now: the next one has a forecast from its submit on.
        await harness.submit("gpt-2", batch={"global": 32})
        await start(harness, agent, "gpt-2")
        (kept,) = (await harness.job("gpt-2")).progress.forecasts
        assert kept.share == 0.0
        assert kept.time_p90_s > kept.time_s > 0

        page = (await harness.client.get("/metrics")).text
        metrics = {one.name: one for one in text_string_to_metric_families(page)}
        counts = {
            (one.labels["of"], one.labels["after"]): one.value
            for one in metrics["headway_forecast_error_ratio"].samples
            if one.name.endswith("_count")
        }
        assert counts == {("time", "0"): 0, ("time", "0.1"): 1, ("cost", "0"): 0, ("cost", "0.1"): 1}


ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 256, "lr_rule": "adascale"}


async def trained_at(cast: Cast, generation: int, batch: int, speed: float) -> None:
    """Report 100 steps with a gradient noise scale of 64 samples."""
    noise = {"gradient_sqr": 1.0, "gradient_var": 64.0, "max_global_batch": 256, "total_samples": 10**8}
    await cast.trained((1, 0), generation, batch, speed, **noise)


async def test_a_partial_search_visits_the_extreme_batches_in_place(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(a=1)
    await cast.begin(1, batch=ADAPTIVE, elastic={"max": 1}, goal={"search": "partial", "objective": "time"})
    await trained_at(cast, 1, 64, 1000.0)
    await cast.turn()
    seen = await search(cast)
    assert (seen.phase, seen.slots, seen.global_batch) == (SearchPhase.VISITING, 1, 256)
    assert (seen.visited, seen.visits) == (1, 2), "not 128, which lies between"
    assert cast.orders(2)["a"].batch == BatchOrder(global_batch=256)
    (event,) = [one for one in await cast.events("search") if one["data"]["visited"] == 1]
    assert "batch 256: visit 2 of 2" in event["message"]

    await cast.switch(2)
    said = {"samples": 64_000, "global_batch": 256, "lr_factor": 1.5, "cause": "ordered by the service"}
    await cast.say((1, 0), "batch_changed", 2, **said)
    # A sample makes 128 / 320 of the progress: 1,500 samples per second are worth 600 of the smaller batch.
    await trained_at(cast, 2, 256, 1500.0)
    await cast.turn()
    seen = await search(cast)
    assert (seen.phase, seen.global_batch, seen.visited, seen.skipped) == (SearchPhase.SETTLED, 64, 2, 0)
    assert cast.orders(3)["a"].batch == BatchOrder(global_batch=64)


async def test_runs_of_its_class_shorten_the_search_of_a_job(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(a=2)
    await begin(cast, objective="time")
    await measure(cast, 1, 0.1)
    await cast.turn()
    await cast.ready((2, 1))
    await cast.switch(2)
    await measure(cast, 2, 0.2, samples=4_000)
    await cast.turn()
    assert ((await search(cast)).visited, (await search(cast)).shown) == (2, 0)
    await cast.harness.post("jobs/job/cancel")
    await cast.deliver()
    await cast.stopped(1, 2, 3)
    assert (await cast.job()).state is JobState.CANCELLED

    second = Cast(harness)
    second.agents, second.told = cast.agents, {"a": []}
    spec = {"elastic": {"min": 1, "max": 2}, "batch": {"global": 32}}
    await harness.submit("job-2", **spec, goal={"search": "full", "objective": "time"})
    await second.turn()
    (run,) = second.started(1, "job-2").values()
    await second.news("a", second.entry(run.generation, "ranks_started", how="zygote"))
    await second.say((1, 0), "first_step", 1, samples=32, live=True)
    await measure(second, 1, 0.1)
    await second.turn()
    found = (await second.job("job-2")).progress.search
    assert found is not None
    assert (found.phase, found.slots) == (SearchPhase.SETTLED, 1)
    assert (found.visited, found.shown, found.visits, found.skipped) == (1, 1, 2, 0)
