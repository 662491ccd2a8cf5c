"""A waiting job says when it is expected to start, wherever its reason is shown."""

from __future__ import annotations

import re
from datetime import datetime

from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

SAID = re.compile(r"expected to start (by|between [\d :-]+ and) [\d :-]+ UTC, when job ends")


async def test_the_expected_start_is_in_the_api_and_on_the_pages(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1)
    await cast.begin(1, elastic={"min": 1, "max": 1})
    await harness.submit("waits", elastic={"min": 1, "max": 1})
    await harness.turn()
    assert "expected to start" not in (await harness.job("waits")).present, "nobody knows the end"
    assert (await harness.job("waits")).starts_at is None
    done = {"samples": 30_000, "total_samples": 100_000, "steps": 500, "step_s_sum": 50.0}
    await cast.trained((1, 0), 1, 64, 640.0, step_s_squares=5.0, local_batch=64, accumulation=1, **done)
    await harness.turn()
    job = await harness.job("waits")
    assert SAID.search(job.present)
    assert job.starts_at is not None
    assert f"{job.starts_at:%H:%M} UTC, when job ends" in job.present
    explained = (await harness.client.get("/api/v1/jobs/waits/explain")).json()
    assert datetime.fromisoformat(explained["starts_at"]) == job.starts_at
    assert (
        f'starts by <time datetime="{job.starts_at:%Y-%m-%dT%H:%M:%SZ}"'
        in (await harness.client.get("/jobs")).text
    )
    assert (await harness.job("job")).starts_at is None, "it runs"
    for path in ("/api/v1/jobs/waits/explain", "/jobs", "/jobs/waits"):
        assert SAID.search((await harness.client.get(path)).text), path
