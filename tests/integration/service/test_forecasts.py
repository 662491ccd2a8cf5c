"""Forecasts of jobs, plans before a submit, and how good predictions were, over the real service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.contract.views.forecasts import (
    Confidence,
    ConfigurationForecast,
    ForecastView,
    Mark,
    PlanView,
    WorkSource,
)
from service.domain.jobs.records import Prediction
from tests.conformance.test_decisions import allocation_of
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings
from tests.integration.service.test_life_of_a_job import progress, start, stop


async def forecast(harness: Harness, job: str = "job") -> ForecastView:
    response = await harness.client.get(f"/api/v1/jobs/{job}/forecast")
    assert response.status_code == 200, response.text
    return ForecastView.model_validate_json(response.content)


async def plan(harness: Harness, name: str = "job", **spec: Any) -> PlanView:
    response = await harness.post("plans", {"name": name, "run": "python -V", **spec})
    assert response.status_code == 200, response.text
    return PlanView.model_validate_json(response.content)


async def measured(
    harness: Harness, agent: Agent, name: str = "job", *, slots: int = 4, step_s: float = 0.1
) -> Any:
    """A job that runs on one slot, and has said how fast it is and that 10,000 samples are all."""
    await harness.submit(name, elastic={"min": 1, "max": slots}, batch={"global": 32})
    run = await start(harness, agent, name)
    await agent.report(entry("rank_message", run, **progress(run.generation, 2_000, 200, step_s)))
    return run


def by_slots(configurations: list[ConfigurationForecast]) -> dict[int, ConfigurationForecast]:
    return {one.slots: one for one in configurations}


async def test_a_running_job_is_told_what_every_size_would_take(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}", usd_per_slot_h={"cpu": 3600.0})
    async with harness_of(settings) as harness:
        await measured(harness, await harness.join(slots=3))
        seen = await forecast(harness)
    assert (seen.name, seen.work.source, seen.work.samples) == ("job", WorkSource.SCRIPT, 8_000)
    sizes = by_slots(seen.configurations)
    present = sizes[1]
    assert Mark.PRESENT in present.marks
    assert present.confidence is Confidence.HIGH
    assert present.goodput == pytest.approx(320, rel=0.05)
    assert present.time_s == pytest.approx(25, rel=0.05)
    assert present.time_p90_s is not None
    assert present.cost_usd == pytest.approx(present.time_s)
    assert present.time_p90_s > 25
    assert (present.global_batch, present.local_batch, present.accumulation) == (32, 32, 1)
    assert present.why_not_now == ""
    assert set(sizes) == {1, 2, 3}
    assert all(one.goodput_low <= one.goodput <= one.goodput_high for one in sizes.values())  # type: ignore[operator]
    marked = [mark for one in sizes.values() for mark in one.marks]
    assert marked.count(Mark.KNEE) == marked.count(Mark.FASTEST) == 1
    assert Mark.SMALLEST in present.marks


async def test_a_size_that_others_hold_is_not_to_be_had_now(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    await measured(harness, agent)
    await harness.submit("other")
    await harness.post("jobs/job/resize", {"slots": 1})
    await start(harness, agent, "other")
    await harness.post("jobs/job/resize", {"slots": None})
    two = by_slots((await forecast(harness)).configurations)[2]
    assert two.why_not_now == "only 1 cpu slot is free or held by this job"


async def test_before_anything_is_measured_only_ratios_are_told(harness: Harness) -> None:
    await harness.join(slots=2)
    await harness.submit(elastic={"min": 1, "max": 2})
    seen = await forecast(harness)
    assert (seen.work.source, seen.work.samples) == (WorkSource.UNKNOWN, None)
    assert seen.configurations
    for one in seen.configurations:
        assert (one.goodput, one.time_s, one.cost_usd) == (None, None, None)
        assert one.confidence is Confidence.LOW
        assert one.speedup > 0


async def test_an_ended_job_has_nothing_left(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await stop(agent, await start(harness, agent), 0, completed=True)
    seen = await forecast(harness)
    assert (seen.work.samples, seen.configurations) == (0, [])


@pytest.mark.parametrize("resize", ["live", "restart", "never"])
async def test_a_job_of_any_state_has_a_forecast(harness: Harness, resize: str) -> None:
    agent = await harness.join(slots=2)
    await harness.submit(elastic={"min": 1, "max": 2, "resize": resize})
    await harness.turn()
    starting = await forecast(harness)
    assert any(Mark.PRESENT in one.marks for one in starting.configurations)
    await harness.post("jobs/job/pause")
    assert (await forecast(harness)).configurations
    await agent.commands()
    assert (await harness.client.get("/api/v1/jobs/nobody/forecast")).status_code == 404


async def test_a_plan_without_a_class_warns_that_it_guesses(harness: Harness) -> None:
    await harness.join(slots=2)
    seen = await plan(harness, "gpt-17", elastic={"min": 1, "max": 8})
    assert seen.job_class == "default/gpt"
    assert [one.slots for one in seen.configurations] == [1, 2]
    assert any("guesses" in warning for warning in seen.warnings)
    assert any("elastic.max is 8" in warning for warning in seen.warnings)
    assert (await harness.client.get("/api/v1/jobs")).json()["items"] == []


async def test_a_plan_rests_on_what_its_class_has_measured(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    run = await measured(harness, agent, "gpt-1", slots=1)
    await stop(agent, run, 0, completed=True)
    seen = await plan(harness, "gpt-2", batch={"global": 32})
    (one,) = seen.configurations
    assert seen.warnings == []
    assert (seen.work.source, seen.work.samples) == (WorkSource.CLASS, pytest.approx(2_000, rel=0.2))
    assert one.goodput == pytest.approx(320, rel=0.1)
    assert one.time_s == pytest.approx(seen.work.samples / one.goodput)  # type: ignore[operator]
    assert one.confidence is not Confidence.LOW


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"resources": {"devices": ["h100"]}}, "no node has h100; kinds in this cluster: cpu"),
        ({"elastic": {"min": 4}}, "needs at least 4 slots of one kind, but the cluster has 2"),
    ],
)
async def test_a_plan_says_what_this_cluster_cannot_give(
    harness: Harness, spec: dict[str, Any], warning: str
) -> None:
    await harness.join(slots=2)
    seen = await plan(harness, **spec)
    assert warning in seen.warnings[0]
    assert seen.configurations == []


async def test_a_plan_for_an_empty_cluster_and_of_a_wrong_spec(harness: Harness) -> None:
    assert "none yet" in (await plan(harness)).warnings[0]
    refused = await harness.post("plans", {"name": "x", "run": "y", "elastic": {"min": 3, "max": 2}})
    assert refused.status_code == 422


async def test_predictions_are_scored_against_what_was_measured(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    run = await measured(harness, agent)
    now = datetime.now(UTC)
    async with harness.service.database.begin() as tx:
        node = next(iter((await tx.jobs.lock(run.job_id)).allocation))
        for generation, at, predicted in ((11, now, 640.0), (12, now - timedelta(days=2), 320.0)):
            expected = Prediction(predicted, predicted / 1.1, predicted * 1.1)
            allocation = allocation_of(
                run.job_id, {node: (0,)}, generation=generation, granted_at=at, predicted=expected
            )
            await tx.grants.add_allocation(allocation)
    async with harness.service.database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE allocations SET predicted_samples_per_s = NULL WHERE generation = 1"
        )
        await connection.exec_driver_sql(
            "INSERT INTO measurements (job_id, generation, global_batch, device_kind, slots, nodes, steps, step_s_sum,"
            " step_s_squares, updated_at) SELECT job_id, g, global_batch, device_kind, slots, nodes, steps, step_s_sum,"
            " step_s_squares, updated_at FROM measurements, generate_series(11, 12) AS g"
        )
    seen = await forecast(harness)
    assert [(one.generation, one.predicted, one.measured) for one in seen.predictions] == [
        (12, 320.0, pytest.approx(320)),
        (11, 640.0, pytest.approx(320)),
    ]
    assert (seen.score.count, seen.score.coverage) == (2, 0.5)
    assert seen.score.median_ratio == pytest.approx(1.5)
    found = await metrics_of(harness)
    assert found["headway_prediction_error_ratio_count", ""] == 1
    assert found["headway_prediction_error_ratio", "0.5"] == pytest.approx(2.0)
    assert found["headway_prediction_coverage_ratio", ""] == 0


async def test_what_a_round_expects_of_a_start_is_compared_with_what_comes(harness: Harness) -> None:
    """The class is known, so that the round that starts the next one has an opinion."""
    agent = await harness.join(slots=2)
    await stop(agent, await measured(harness, agent, "gpt-1", slots=1), 0, completed=True)
    await measured(harness, agent, "gpt-2", slots=1)
    seen = await forecast(harness, "gpt-2")
    (one,) = seen.predictions
    assert (one.generation, one.slots, one.device_kind) == (1, 1, "cpu")
    assert one.low <= one.predicted <= one.high
    assert one.predicted == pytest.approx(one.measured, rel=0.2)
    assert (seen.score.count, seen.score.coverage) == (1, 1.0)


async def metrics_of(harness: Harness) -> dict[tuple[str, str], float]:
    response = await harness.client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, sample.labels.get("quantile", "")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_without_predictions_there_is_none_to_score(harness: Harness) -> None:
    found = await metrics_of(harness)
    assert found["headway_prediction_error_ratio_count", ""] == 0
