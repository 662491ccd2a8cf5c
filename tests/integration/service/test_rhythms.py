"""Rhythms of published policies in a running service: a lease bounds how often a job loses its slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message
from tests.integration.service.test_long_run_budget import skip


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    async with harness_of(settings, api_skips=True) as made:
        yield made


@pytest.mark.parametrize(("policy", "keeps_s", "leaves_s"), [("gavel", 340.0, 380.0), ("las", 40.0, 80.0)])
async def test_a_running_job_yields_to_an_equal_one_after_the_lease_of_the_policy(
    harness: Harness, policy: str, keeps_s: float, leaves_s: float
) -> None:
    """Both jobs ask for the only slot. Without a lease a job keeps it for the minimum run time of 60 s."""
    parameters = {"queue_limits_slot_s": [1.0]} if policy == "las" else {}
    answer = await harness.client.put("/api/v1/cluster", json={"policy": policy, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    agent = await harness.join("alpha", slots=1)
    for name in ("job-1", "job-2"):
        await harness.submit(name, elastic={"min": 1, "max": 1})
    await harness.turn()
    run = run_of(await agent.commands())
    first_step = message("first_step", run.generation, samples=32)
    # A job of a class that was never measured would displace nobody.
    told = {"epoch": 0, "samples": 6400, "total_samples": None, "steps": 200, "step_s_sum": 20.0}
    plan = {"step_s_squares": 2.0, "global_batch": 32, "local_batch": 32, "accumulation": 1}
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **first_step),
        entry("rank_message", run, **message("progress", run.generation, **told, **plan)),
    )
    await skip(harness, agent, keeps_s)
    await harness.turn()
    assert (await harness.job("job-1")).state is JobState.RUNNING
    await skip(harness, agent, leaves_s - keeps_s)
    await harness.turn()
    assert (await harness.job("job-1")).reason is Reason.PREEMPTED
