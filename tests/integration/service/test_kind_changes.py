"""Changes of the device kind of a running job, over the real API, Postgres and Redis."""

from __future__ import annotations

from datetime import timedelta

from service.domain.cluster.contention_rules import USUAL
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness


async def test_a_job_keeps_its_device_kind_for_the_minimum_run_time(harness: Harness) -> None:
    """A job of the same class shows that the other kind is ten times faster, and then leaves it."""
    cast = Cast(harness)
    await cast.join(kind="a100", alpha=1)
    await cast.begin(1, "job-1", elastic={"max": 1})
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.join(kind="t4", beta=1)
    await cast.begin(1, "job-2", elastic={"max": 1})
    await cast.trained((1, 0), 1, 64, 100.0)
    await harness.post("jobs/job-1/cancel", {"force": True})
    await cast.deliver()
    slow, cast.job_id = cast.job_id, (await cast.job("job-1")).id
    await cast.news("alpha", cast.exit((1, 0), signal=9, stopped_by_agent=True), cast.entry(1, "released"))
    cast.job_id = slow
    harness.clock.skipped = timedelta(seconds=USUAL.min_run_s - 10)
    await cast.turn()
    assert (await cast.job("job-2")).generation == 1
    assert list(cast.started(2, "job-2")) == []
    explained = (await harness.client.get("/api/v1/jobs/job-2/explain")).json()
    (fast,) = [one for one in explained["options"] if one["device_kind"] == "a100"]
    assert (fast["goodput_samples_per_s"] > 1000, fast["utility"]) == (True, None)
    harness.clock.skipped = timedelta(seconds=USUAL.min_run_s + 1)
    await cast.turn()
    assert list(cast.started(2, "job-2")) == ["alpha"]
    await cast.ready((2, 0))
    await cast.switch(2)
    moved = (await cast.job("job-2")).progress.restarted_at
    assert moved is not None
    assert moved > (await cast.job("job-2")).submitted_at
