"""Markets from end to end: a job on both, one that takes only the other, and a cap that a third one waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest_asyncio
from sqlalchemy import text

from headway.contract.values.markets import Market
from headway.contract.views.decisions import ClusterView, ExplanationView, RoundView
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, harness_of, make_settings


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", usd_per_slot_h={"cpu": 2.0}
    )
    async with harness_of(settings) as made:
        yield made


async def on_spot(harness: Harness, name: str, slots: int, usd_per_slot_h: float) -> Agent:
    """A node as one that was rented on spot."""
    agent = await harness.join(name, slots=slots)
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE nodes SET market = 'spot', usd_per_slot_h = :usd WHERE name = :name"),
            {"usd": usd_per_slot_h, "name": name},
        )
    return agent


async def explained(harness: Harness, job: str) -> ExplanationView:
    response = await harness.client.get(f"/api/v1/jobs/{job}/explain")
    assert response.status_code == 200, response.text
    return ExplanationView.model_validate_json(response.content)


async def test_a_job_lies_on_both_markets_and_says_so(harness: Harness) -> None:
    firm, spot = await harness.join("firm", slots=2), await on_spot(harness, "cheap", 2, 0.5)
    await harness.submit("both", market="mixed", elastic={"min": 3, "max": 3})
    await harness.submit("stays", elastic={"min": 2, "max": 2})
    await harness.turn()
    for agent, ranks in ((firm, 1), (spot, 2)):
        (run,) = await agent.commands()
        assert (run.job_name, len(run.ranks)) == ("both", ranks)  # type: ignore[union-attr]
    both = await explained(harness, "both")
    assert "3 cpu slots (1 on-demand as anchor, 2 spot)" in both.message
    anchored = [one for one in both.options if one.anchor]
    assert [(one.pool, one.slots, one.anchor, one.usd_per_h) for one in anchored] == [
        ("cpu (spot)", 3, 1, 3.0),
        ("cpu (spot)", 3, 2, 4.5),
    ]
    stays = await harness.job("stays")
    assert (stays.state, stays.reason) == (JobState.PENDING, Reason.WAITING_FOR_CAPACITY)
    latest = RoundView.model_validate_json((await harness.client.get("/api/v1/rounds/latest")).content)
    used = {row.name: (row.used, row.capacity) for row in latest.prices}
    assert used == {"slots/cpu": (1, 2), "slots/cpu (spot)": (2, 2)}
    cluster = ClusterView.model_validate_json((await harness.client.get("/api/v1/cluster")).content)
    assert [(kind.market, kind.held, kind.usd_per_slot_h) for kind in cluster.kinds] == [
        (Market.ON_DEMAND, 1, 2.0),
        (Market.SPOT, 2, 0.5),
    ]
    assert cluster.usd_per_h == 3.0


async def test_who_takes_one_market_is_told_of_the_other(harness: Harness) -> None:
    await on_spot(harness, "cheap", 2, 0.5)
    await harness.join("firm", slots=1)
    await harness.submit(elastic={"min": 2, "max": 2})
    await harness.turn()
    job = await harness.job()
    assert "2 spot slots exist, but the job accepts on-demand only (market)" in job.message


async def test_a_cap_lets_the_cheaper_market_in(harness: Harness) -> None:
    await harness.join("firm", slots=2)
    spot = await on_spot(harness, "cheap", 2, 0.5)
    response = await harness.client.put(
        "/api/v1/budgets/all", json={"kind": "hourly_cap", "usd": 1.0, "hard": True}
    )
    assert response.status_code == 201, response.text
    await harness.submit("dear")
    await harness.submit("cheap", market="mixed")
    harness.clock.skipped += timedelta(seconds=1)
    await harness.turn()
    (run,) = await spot.commands()
    assert run.job_name == "cheap"  # type: ignore[union-attr]
    dear = await harness.job("dear")
    assert (dear.state, dear.reason) == (JobState.PENDING, Reason.BUDGET)
    assert dear.message == "costs at least $2.00 an hour, but budget all ($1.00 an hour) has $0.50 left"
