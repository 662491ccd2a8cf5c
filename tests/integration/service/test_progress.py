"""A job that ends by progress, over the real service: its forecasts, its share, and the work of its class."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from headway.contract.views.forecasts import ForecastView, Mark
from headway.contract.views.jobs import JobState
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness
from tests.integration.service.test_forecasts import plan

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 128, "lr_rule": "adascale"}
NOISE = {"gradient_sqr": 1.0, "gradient_var": 64.0}
"""At this noise scale a sample in steps of 128 is worth (64 + 64) / (64 + 128), two thirds of one in steps of 64."""


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def report(cast: Cast, batch: int, samples: int, **fields: Any) -> None:
    """Rank 0 reports 500 steps of 0.1 seconds, whose time is mostly overhead."""
    said = {"max_global_batch": 128, "total_samples": 100_000, "steps": 500, "step_s_sum": 50.0, **NOISE}
    said |= {"step_s_squares": 5.0, "local_batch": batch, "accumulation": 1, **fields}
    await cast.trained((1, 0), 1, batch, 10.0 * batch, samples=samples, **said)


async def forecast_of(cast: Cast) -> ForecastView:
    answer = await cast.harness.client.get("/api/v1/jobs/job/forecast")
    return ForecastView.model_validate(answer.json())


async def test_what_is_left_is_progress_and_takes_its_time(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    by_progress = {"total_progress": 100_000.0, "dataset_samples": 10_000}
    await report(cast, 64, 30_000, progress=30_000.0, **by_progress)
    await report(cast, 128, 60_000, progress=50_000.0, **by_progress)
    job = await cast.job()
    assert job.progress.work_share == pytest.approx(0.5)
    assert job.progress.efficiency == pytest.approx(2 / 3)
    assert job.progress.time_left_s == pytest.approx(50_000 / 1280 * 1.5)
    assert job.progress.position_text == "epoch 5.0 of 10 (progress), 6.0 read"
    found = await forecast_of(cast)
    assert found.work.samples == 50_000
    (present,) = [one for one in found.configurations if Mark.PRESENT in one.marks]
    assert present.global_batch == 128
    assert present.time_s == pytest.approx(50_000 / (1280 * 2 / 3), rel=0.05)


async def test_a_job_that_ends_with_its_data_keeps_counting_samples(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    await report(cast, 64, 30_000, progress=30_000.0, dataset_samples=10_000)
    await report(cast, 128, 60_000, progress=50_000.0, dataset_samples=10_000)
    job = await cast.job()
    assert job.progress.work_share == pytest.approx(0.6)
    found = await forecast_of(cast)
    assert found.work.samples == 40_000
    (present,) = [one for one in found.configurations if Mark.PRESENT in one.marks]
    assert present.time_s == pytest.approx(40_000 / 1280, rel=0.05)


async def test_the_next_job_of_the_class_is_forecast_by_the_progress_of_this_one(cast: Cast) -> None:
    """It read 150,000 samples for the progress of 100,000."""
    await cast.join(alpha=1)
    await cast.begin(1, batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    await report(cast, 128, 150_000, progress=100_000.0, total_progress=100_000.0, dataset_samples=10_000)
    await cast.die((1, 0), exit_code=0, completed=True)
    assert (await cast.job()).state is JobState.SUCCEEDED
    found = await plan(cast.harness, "job", batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    assert found.work.samples == pytest.approx(100_000)
