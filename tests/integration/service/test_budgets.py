"""Budgets from end to end: set over HTTP, kept by rounds, told of in events, shown with the bill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message, progress

PRICE = 36_000.0
"""Ten dollars for each slot-second, so that seconds of a test cost something."""


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", usd_per_slot_h={"cpu": PRICE}
    )
    async with harness_of(settings) as made:
        await made.scheduler.accrue()
        yield made


async def put(harness: Harness, name: str, status: int = 201, **fields: Any) -> dict[str, Any]:
    response = await harness.client.put(f"/api/v1/budgets/{name}", json=fields)
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    return body


async def get(harness: Harness, path: str, **query: Any) -> dict[str, Any]:
    response = await harness.client.get(f"/api/v1/{path}", params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def train(harness: Harness, agent: Agent, name: str = "job", **spec: Any) -> Any:
    await harness.submit(name, **spec)
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **message("first_step", run.generation, samples=32)),
    )
    return run


async def spend(harness: Harness, agent: Agent, seconds: float) -> None:
    """Let time go by: the agent is heard of, and the ledger goes on."""
    harness.clock.skipped += timedelta(seconds=seconds)
    async with harness.service.database.begin() as tx:
        node = await tx.nodes.lock(agent.joined.node_id)
        await tx.nodes.save(_seen(node, harness.clock.now()))
    await harness.scheduler.accrue()


def _seen(node: Any, now: datetime) -> Any:
    from dataclasses import replace  # noqa: PLC0415

    return replace(node, seen_at=now)


async def events(harness: Harness, job: str = "job") -> list[str]:
    found = await get(harness, f"jobs/{job}/events", limit=500)
    return [one["message"] for one in found["items"] if one["kind"] == "budget"]


async def test_a_budget_is_set_changed_and_removed(harness: Harness) -> None:
    refused = await put(harness, "daily", 422, usd=100, period="day", project="vision")
    assert "headway project create vision" in refused["detail"]
    await harness.client.put("/api/v1/projects/vision", json={})
    made = await put(harness, "daily", usd=100, period="day", project="vision")
    assert (made["version"], made["scope"], made["hard"], made["spent_usd"]) == (1, "project", False, 0)
    assert (await put(harness, "daily", 200, usd=100, period="day", project="vision"))["version"] == 1
    assert (await put(harness, "daily", 200, usd=50, period="day", project="vision"))["version"] == 2
    stale = await harness.client.put(
        "/api/v1/budgets/daily", json={"usd": 1, "period": "day"}, headers={"If-Match": '"1"'}
    )
    assert (stale.status_code, stale.json()["code"]) == (412, "changed")
    one = await harness.client.get("/api/v1/budgets/daily")
    assert one.headers["ETag"] == '"2"'
    removed = await harness.client.delete("/api/v1/budgets/daily", headers={"If-Match": one.headers["ETag"]})
    assert removed.status_code == 204
    assert (await harness.client.delete("/api/v1/budgets/daily")).status_code == 404
    assert (await get(harness, "budgets"))["items"] == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"usd": -1, "period": "day"}, "usd"),
        ({"usd": "NaN", "period": "day"}, "usd"),
        ({"usd": 1e12, "period": "day"}, "usd"),
        ({"usd": "ten euros", "period": "day"}, "usd"),
        ({"usd": 1}, "body"),
        ({"usd": 1, "period": "fortnight"}, "period"),
        ({"usd": 1, "kind": "hourly_cap", "period": "day"}, "body"),
        ({"usd": 1, "kind": "long_run", "project": "p"}, "body"),
        ({"usd": 1, "kind": "long_run", "hard": True}, "body"),
        ({"usd": 1, "period": "day", "currency": "EUR"}, "currency"),
        ({"usd": 1, "period": "day", "project": "Not A Name"}, "project"),
    ],
)
async def test_a_budget_that_makes_no_sense_is_refused(
    harness: Harness, fields: dict[str, Any], field: str
) -> None:
    response = await harness.client.put("/api/v1/budgets/b", json=fields)
    assert response.status_code == 422
    assert [one["field"] for one in response.json()["errors"]] == [field]
    assert (await get(harness, "budgets"))["items"] == []


async def test_an_infinite_budget_is_refused_as_json_has_it(harness: Harness) -> None:
    for number in ("Infinity", "NaN"):
        response = await harness.client.put(
            "/api/v1/budgets/b", content=f'{{"usd": {number}, "period": "day"}}'
        )
        assert response.status_code == 422


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-01-01T00:00:00"},
        {"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"group_by": "colour"},
        {"from": "yesterday"},
        {"from": "0001-01-01T00:00:00+14:00"},
        {"to": "9999-12-31T23:59:59-14:00"},
    ],
)
async def test_usage_of_no_time_is_refused(harness: Harness, query: dict[str, str]) -> None:
    assert (await harness.client.get("/api/v1/usage", params=query)).status_code == 422


async def test_a_hard_budget_stops_jobs_until_it_is_raised(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    run = await train(harness, agent)
    await put(harness, "daily", usd=1000, period="day", hard=True)
    await spend(harness, agent, 70)
    await harness.turn()
    assert (await harness.job()).state is JobState.RUNNING
    assert await events(harness) == []
    await spend(harness, agent, 15)
    assert ["daily (hard)" in one for one in await events(harness)] == [True]
    await spend(harness, agent, 25)
    assert len(await events(harness)) == 2
    (budget,) = (await get(harness, "budgets"))["items"]
    assert budget["exhausted"]
    assert budget["remaining_usd"] == 0
    await harness.turn()
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RESIZING, Reason.BUDGET)
    await agent.report(
        entry("rank_exited", run, rank=0, exit_code=143, stopped_by_agent=True), entry("released", run)
    )
    await harness.turn()
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.PENDING, Reason.BUDGET)
    assert "budget daily is spent" in job.message
    await put(harness, "daily", 200, usd=100_000, period="day", hard=True)
    await harness.turn()
    assert (await harness.job()).state is JobState.STARTING


async def test_a_soft_budget_tells_and_stops_nobody(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    await train(harness, agent)
    await put(harness, "daily", usd=100, period="day")
    await spend(harness, agent, 60)
    await spend(harness, agent, 60)
    await harness.turn()
    assert (await harness.job()).state is JobState.RUNNING
    assert ["daily (soft)" in one for one in await events(harness)] == [True]
    scraped = (await harness.client.get("/metrics")).text
    assert 'headway_budget_remaining_dollars{budget="daily"} 0.0' in scraped
    assert 'headway_spend_dollars_total{category="useful",market="on-demand",project="default"}' in scraped


@pytest.mark.parametrize(("choice", "state"), [("pause", JobState.PAUSED), ("stop", JobState.CANCELLED)])
async def test_a_job_whose_money_is_spent_does_as_its_file_says(
    harness: Harness, choice: str, state: JobState
) -> None:
    agent = await harness.join(slots=1)
    run = await train(harness, agent, goal={"max_cost_usd": 500, "on_budget": choice})
    await spend(harness, agent, 45)
    assert [choice in one for one in await events(harness)] == [True]
    await spend(harness, agent, 10)
    assert len(await events(harness)) == 2
    await harness.scheduler.deliver()
    await agent.report(
        entry("rank_exited", run, rank=0, exit_code=143, stopped_by_agent=True), entry("released", run)
    )
    job = await harness.job()
    assert (job.state, job.reason) == (state, Reason.BUDGET)
    assert "spent" in job.message
    await spend(harness, agent, 5)
    assert len(await events(harness)) == 2, "each share is told of once"


async def test_a_job_that_shrinks_goes_on(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    await train(harness, agent, goal={"max_cost_usd": 100})
    await spend(harness, agent, 20)
    await harness.turn()
    assert (await harness.job()).state is JobState.RUNNING
    assert len(await events(harness)) == 1


async def test_a_job_that_never_changes_is_said_to_run_on_beyond_a_hard_budget(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    await train(harness, agent, elastic={"min": 1, "resize": "never"})
    await put(harness, "day", usd=100, period="day", hard=True)
    await spend(harness, agent, 20)
    await harness.submit("next")
    await harness.turn()
    assert (await harness.job()).state is JobState.RUNNING
    assert (await harness.job("next")).state is JobState.PENDING
    (told,) = await events(harness)
    assert "runs to its end" in told


async def test_a_long_run_average_is_what_the_cluster_follows(harness: Harness) -> None:
    made = await put(harness, "boa", usd=12, kind="long_run")
    assert "an hour on average" in made["message"]
    cluster = await get(harness, "cluster")
    assert (cluster["policy"], cluster["parameters"]) == ("budget", {"usd_per_h": 12})
    second = await harness.client.put("/api/v1/budgets/other", json={"usd": 1, "kind": "long_run"})
    assert (second.status_code, second.json()["errors"][0]["field"]) == (422, "kind")
    await harness.client.put("/api/v1/cluster", json={"policy": "srtf"})
    (budget,) = (await get(harness, "budgets"))["items"]
    assert all(one in budget["message"] for one in ("srtf", "headway policy budget"))
    await put(harness, "boa", 200, usd=12, kind="long_run")
    assert (await get(harness, "cluster"))["policy"] == "budget"
    assert (await harness.client.delete("/api/v1/budgets/boa")).status_code == 204
    assert (await get(harness, "cluster"))["policy"] == "goodput"


async def test_an_hourly_cap_holds_and_has_a_price(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    await put(harness, "cap", usd=1.5 * PRICE, kind="hourly_cap", hard=True)
    await harness.submit("one")
    await harness.submit("two")
    await harness.turn()
    states = sorted([(await harness.job(name)).state for name in ("one", "two")])
    assert states == [JobState.PENDING, JobState.STARTING]
    assert agent is not None
    await harness.scheduler.accrue()
    (budget,) = (await get(harness, "budgets"))["items"]
    assert budget["usd_price"]["capacity"] == 1.5 * PRICE
    assert budget["usd_price"]["used"] == PRICE
    assert budget["usd_price"]["price"] > 0


async def test_usage_adds_up_and_a_job_knows_what_it_cost(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    run = await train(harness, agent)
    await agent.report(entry("rank_message", run, **progress(1, samples=640)))
    await spend(harness, agent, 100)
    totals = []
    for by in ("job", "project", "market", "node", "category", "day"):
        usage = await get(harness, "usage", group_by=by)
        assert sum(one["usd"] for one in usage["groups"]) == pytest.approx(usage["total"]["usd"], abs=1e-9)
        totals.append(usage["total"])
    assert all(one == totals[0] for one in totals)
    assert totals[0]["unpriced_slot_h"] == 0
    by_job = await get(harness, "usage", group_by="job")
    assert {one["label"] for one in by_job["groups"]} == {"job", ""}
    cost = (await harness.job()).cost
    assert cost is not None
    assert cost.useful_usd == pytest.approx(1000, rel=0.2)
    assert cost.usd == pytest.approx(cost.useful_usd + cost.unknown_usd + cost.resize_usd + cost.lost_usd)
    assert (await get(harness, "jobs"))["items"][0]["cost"]["usd"] == cost.usd


async def test_no_price_is_said(database_url: str, redis_url: str, tmp_path: Path) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    async with harness_of(settings) as harness:
        await harness.scheduler.accrue()
        agent = await harness.join(slots=1)
        await train(harness, agent)
        await spend(harness, agent, 36)
        usage = await get(harness, "usage", group_by="job")
        assert usage["unpriced_kinds"] == ["cpu"]
        assert usage["total"]["usd"] == 0
        assert usage["total"]["unpriced_slot_h"] == pytest.approx(0.01, rel=0.3)
        cost = (await harness.job()).cost
        assert cost is not None
        assert cost.unpriced


async def test_a_crash_costs_what_is_trained_again(harness: Harness) -> None:
    """640 samples at 64 a second: ten seconds, a hundred dollars."""
    agent = await harness.join(slots=1)
    run = await train(harness, agent)
    await agent.report(entry("rank_message", run, **progress(1, samples=640, step_s=0.5)))
    job = await harness.job()
    speed = job.progress.samples_per_s
    assert speed
    await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))
    await _set_back(harness, job.id, seconds=100)
    await harness.turn()
    again = run_of(await agent.commands())
    await agent.report(
        entry("ranks_started", again, how="spawn"),
        entry("rank_message", again, **message("first_step", again.generation, samples=32)),
    )
    await spend(harness, agent, 1)
    groups = (await get(harness, "usage", group_by="category"))["groups"]
    lost = {one["key"]: one["lost_slot_h"] * 3600 for one in groups}["lost"]
    assert lost == pytest.approx(640 / speed, abs=2)
    scraped = (await harness.client.get("/metrics")).text
    assert 'headway_lost_gpu_seconds_total{cause="RANK_LOST"}' in scraped


async def _set_back(harness: Harness, job_id: str, *, seconds: float) -> None:
    """Let what has happened to a job so far have happened earlier."""
    back = {"job": job_id, "back": timedelta(seconds=seconds)}
    async with harness.service.database.engine.begin() as connection:
        for statement in (
            "UPDATE events SET at = at - CAST(:back AS interval) WHERE job_id = :job"
            " AND kind IN ('submit', 'allocate', 'start', 'first_step')",
            "UPDATE slot_grants SET granted_at = granted_at - CAST(:back AS interval) WHERE job_id = :job",
            "UPDATE allocations SET granted_at = granted_at - CAST(:back AS interval) WHERE job_id = :job",
            "UPDATE nodes SET joined_at = joined_at - CAST(:back AS interval) WHERE CAST(:job AS text) <> ''",
            "UPDATE ledger_state SET accrued_at = accrued_at - CAST(:back AS interval) WHERE CAST(:job AS text) <> ''",
        ):
            await connection.execute(text(statement), back)
