"""A job that ends when a metric reaches the target of its job file, over the real service."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.contract.views.forecasts import ForecastView, TargetProgress, WorkSource
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

EVERY = 1_000


async def begin(harness: Harness, **target: float | str) -> Cast:
    cast = Cast(harness)
    await cast.join(a=2)
    await cast.begin(1, batch={"global": 32}, goal={"target": target})
    return cast


async def report(cast: Cast, values: Sequence[float], first: int = EVERY, name: str = "loss") -> None:
    """Report one value every `EVERY` samples, with the progress of 100 samples per second."""
    for index, value in enumerate(values):
        samples = first + index * EVERY
        said = {"epoch": 3, "samples": samples, "total_samples": 10**6, "steps": 30, "step_s_sum": 9.6}
        more = {"step_s_squares": 3.1, "global_batch": 32, "local_batch": 32, "accumulation": 1}
        told = cast.message((1, 0), "progress", 1, **said, **more)
        metric = cast.message((1, 0), "metrics", 1, epoch=3, samples=samples, values={name: value})
        await cast.news("a", told, metric)


async def target(cast: Cast) -> TargetProgress:
    found = (await cast.job()).progress.goal_target
    assert found is not None
    return found


async def test_a_job_saves_and_succeeds_at_its_target(harness: Harness) -> None:
    cast = await begin(harness, loss=1.5)
    await report(cast, [4.0, 3.0, 1.0, 2.0, 1.6])
    assert (await cast.job()).state is JobState.RUNNING, "one lucky value is not enough"
    assert (await target(cast)).reached_samples is None
    await report(cast, [1.4, 1.3], first=6 * EVERY)
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.CANCELLING, Reason.TARGET_REACHED)
    assert ("a", 1, 0, "checkpoint") in cast.stops()
    await cast.stopped(1)
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.SUCCEEDED, Reason.TARGET_REACHED)
    assert job.message == "target reached: loss 1.4 <= 1.5 in epoch 3, at 7,000 samples"
    assert (await target(cast)).reached_samples == 7 * EVERY
    assert [one["state"] for one in await cast.events("finish")] == ["CANCELLING"]
    assert [one["state"] for one in await cast.events("succeed")] == ["SUCCEEDED"]
    assert await cast.held() == 0


async def test_the_forecast_ends_at_the_target(harness: Harness) -> None:
    cast = await begin(harness, loss="<= 0.25")
    await cast.turn()
    # loss = 1 / (samples / 10,000 + 0.5) is 0.25 after 35,000 samples, of which 11,000 remain.
    await report(cast, [1 / (0.1 * step + 0.5) for step in range(1, 25)])
    found = await target(cast)
    # The medians lag behind the values by one report.
    assert found.expected_work == pytest.approx(36_000, rel=0.02)
    shown = await harness.client.get("/api/v1/jobs/job/forecast")
    forecast = ForecastView.model_validate_json(shown.content)
    assert forecast.goal_target == found
    assert forecast.work.source is WorkSource.TARGET
    assert forecast.work.samples == pytest.approx(12_000, rel=0.06)
    (here,) = [one for one in forecast.configurations if one.slots == 1]
    assert here.time_s == pytest.approx(forecast.work.samples / 100.0, rel=0.05)
    assert here.time_p90_s is not None
    assert here.time_p90_s > here.time_s


async def test_a_metric_without_a_curve_has_no_forecast(harness: Harness) -> None:
    cast = await begin(harness, accuracy=">= 0.9")
    await report(cast, [0.5] * 8, name="accuracy")
    found = await target(cast)
    assert (found.expected_work, found.reached_samples, found.present) == (None, None, 0.5)
    shown = await harness.client.get("/api/v1/jobs/job/forecast")
    assert ForecastView.model_validate_json(shown.content).work.source is WorkSource.SCRIPT


@pytest.mark.parametrize("wrong", [{}, {"loss": 1, "accuracy": 1}, {"loss": "soon"}])
async def test_a_wrong_target_is_refused(harness: Harness, wrong: dict[str, float | str]) -> None:
    response = await harness.post("jobs", {"name": "job", "run": "python -V", "goal": {"target": wrong}})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"].startswith("goal.target")
