"""Recurring jobs in a running service: ended jobs of a class tell how long the next one takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message, stop
from tests.integration.service.test_long_run_budget import skip

ONE_SLOT: dict[str, Any] = {"elastic": {"min": 1, "max": 1}}
SPEED = 320.0
"""Samples per second of all jobs."""
LONG, SHORT = 960_000, 32_000
"""Samples of the jobs of two classes: 3,000 s and 100 s."""


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_of(
        make_settings(database_url, redis_url, f"file://{tmp_path}/storage"), api_skips=True
    ) as made:
        yield made


async def train_to_its_end(harness: Harness, agent: Agent, name: str, samples: int) -> None:
    """Run a job whose script never says how long it is, for as long as its samples take."""
    await harness.submit(name, **ONE_SLOT)
    await harness.turn()
    run, step_s = run_of(await agent.commands()), 32 / SPEED
    told = {"epoch": 0, "samples": samples, "total_samples": None, "steps": 200, "step_s_sum": 200 * step_s}
    plan = {"step_s_squares": 200 * step_s**2, "global_batch": 32, "local_batch": 32}
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **message("first_step", run.generation, samples=32)),
        entry("rank_message", run, **message("progress", run.generation, **told, **plan, accumulation=1)),
    )
    await skip(harness, agent, samples / SPEED)
    await agent.report(entry("rank_message", run, **message("completed", run.generation, samples=samples)))
    await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job(name)).state is JobState.SUCCEEDED


async def explained(harness: Harness, job: str) -> dict[str, Any]:
    answer = await harness.client.get(f"/api/v1/jobs/{job}/explain")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("recurs", [True, False], ids=["known classes", "new classes"])
async def test_of_two_equal_waiting_jobs_the_one_of_the_shorter_class_goes_first(
    harness: Harness, recurs: bool
) -> None:
    agent = await harness.join("alpha", slots=1)
    for name, samples in (("long-1", LONG), ("short-1", SHORT)):
        await train_to_its_end(harness, agent, name, samples)
    await harness.submit("busy", **ONE_SLOT)
    await harness.turn()
    busy = run_of(await agent.commands())
    long, short = ("long-2", "short-2") if recurs else ("slow-2", "quick-2")
    for name in (long, short):
        await harness.submit(name, **ONE_SLOT)
    await harness.turn()
    waits = await explained(harness, long)
    assert (waits["reason"], waits["policy"]) == (Reason.WAITING_FOR_CAPACITY, "goodput")
    assert ("1 ended job" in waits["message"]) == recurs
    await skip(harness, agent, 30.0)
    await stop(agent, busy, exit_code=0, completed=True)
    await harness.turn()
    first, later = (short, long) if recurs else (long, short)
    assert (await harness.job(first)).state is JobState.STARTING
    assert (await harness.job(later)).state is JobState.PENDING
