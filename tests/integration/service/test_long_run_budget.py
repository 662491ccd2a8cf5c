"""A long-run budget over the real service: it learns lengths that nobody declared, and gives a class two widths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState
from service.domain.policies.budget import stored_state
from service.domain.policies.framework.class_statistics import ClassStatistics
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message, stop

PRICE = 1.0
"""Dollars for a slot-hour."""
ALONE, TOGETHER = 320.0, 448.0
"""Samples per second on one slot, and on two."""
SIZE = 96_000
JOBS = 20


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", usd_per_slot_h={"cpu": PRICE}
    )
    async with harness_of(settings, api_skips=True) as made:
        yield made


async def skip(harness: Harness, agent: Agent, seconds: float) -> None:
    """Let time go by while the agent is heard of."""
    harness.clock.skipped += timedelta(seconds=seconds)
    async with harness.service.database.begin() as tx:
        node = await tx.nodes.lock(agent.joined.node_id)
        await tx.nodes.save(replace(node, seen_at=harness.clock.now()))


async def stored(harness: Harness) -> dict[str, Any]:
    async with harness.service.database.engine.begin() as connection:
        found: dict[str, Any] = (
            await connection.execute(text("SELECT policy_state FROM cluster_settings"))
        ).scalar_one()
    return found


async def learned(harness: Harness) -> ClassStatistics:
    return stored_state((await stored(harness))["state"])[1]


async def train_to_its_end(
    harness: Harness, agent: Agent, name: str, *, speed: float, samples: int, **spec: Any
) -> None:
    """Run a job whose script never says how long it is."""
    await harness.submit(name, **spec)
    await harness.turn()
    run = run_of(await agent.commands())
    step_s = 32 / speed
    told = {"epoch": 0, "samples": samples, "total_samples": None, "steps": 200, "step_s_sum": 200 * step_s}
    plan = {"step_s_squares": 200 * step_s**2, "global_batch": 32, "local_batch": 32 // run.world_size}
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **message("first_step", run.generation, samples=32)),
        entry("rank_message", run, **message("progress", run.generation, **told, **plan, accumulation=1)),
    )
    await harness.turn()
    await agent.report(entry("rank_message", run, **message("completed", run.generation, samples=samples)))
    await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job(name)).state is JobState.SUCCEEDED


async def test_lengths_are_learned_at_the_end_and_a_class_has_two_widths(harness: Harness) -> None:
    agent = await harness.join(slots=40)
    response = await harness.client.put("/api/v1/budgets/boa", json={"usd": 12 * PRICE, "kind": "long_run"})
    assert response.status_code == 201, response.text
    await harness.turn()
    await train_to_its_end(harness, agent, "gpt-1", speed=ALONE, samples=SIZE, elastic={"max": 1})
    one = (await harness.job("gpt-1")).id
    assert one in (await stored(harness))["unsized"]
    assert (await learned(harness)).classes["default/gpt"].sized == 0.0
    await train_to_its_end(harness, agent, "gpt-2", speed=TOGETHER, samples=3 * SIZE, elastic={"min": 2})
    await harness.turn()
    known = (await learned(harness)).classes["default/gpt"]
    assert (known.sized, known.samples) == (pytest.approx(2.0, rel=0.01), pytest.approx(4 * SIZE, rel=0.01))
    await harness.turn()
    assert (await learned(harness)).classes["default/gpt"].sized <= known.sized, "each job counts once"

    # Twenty jobs in 20 minutes, of twice SIZE on average: ten run at a time, for $10 an hour on one slot each.
    await skip(harness, agent, 1200)
    for number in range(JOBS):
        await harness.submit(f"gpt-{number + 3}", elastic={"max": 2})
    await harness.turn()
    runs = [one for one in await agent.commands() if isinstance(one, RunCommand)]
    sizes = sorted(one.world_size for one in runs)
    assert len(sizes) == JOBS
    assert set(sizes) == {1, 2}
    assert 0.2 * JOBS <= sizes.count(1) <= 0.8 * JOBS
