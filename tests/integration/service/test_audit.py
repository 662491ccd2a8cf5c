"""Every change through the API has its row, every row its change; refusals are written, and floods of them counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from headway.contract.views.identity import AuditView
from headway.contract.views.jobs import Page
from service.usecases.identity.audit import ONE_BY_ONE
from service.usecases.ports.audit import AuditFilter
from service.usecases.upkeep.retain import retain
from tests.integration.service.conftest import Harness, join_body


async def audit(harness: Harness, **query: Any) -> list[AuditView]:
    """Oldest first."""
    answer = await harness.client.get("/api/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    return list(reversed(Page[AuditView].model_validate_json(answer.content).items))


async def test_each_change_tells_who_what_and_from_where(harness: Harness) -> None:
    await harness.submit("job")
    await harness.post("jobs/job/cancel")
    await harness.client.put("/api/v1/budgets/daily", json={"kind": "period", "usd": 5, "period": "day"})
    submitted, cancelled, budget = await audit(harness)
    assert (submitted.action, submitted.target, submitted.status) == ("submit_job", "/api/v1/jobs", 201)
    assert (submitted.actor, submitted.project, submitted.detail["name"]) == ("admin", "default", "job")
    assert (cancelled.action, cancelled.project, cancelled.status) == ("cancel_job", "default", 202)
    assert (budget.action, budget.detail["usd"], budget.project) == ("set_budget", 5, None)
    assert submitted.address == "127.0.0.1"
    assert len({one.request_id for one in (submitted, cancelled, budget)}) == 3


async def test_what_changes_nothing_is_not_told(harness: Harness) -> None:
    key = {"Idempotency-Key": "one"}
    for _ in range(3):
        await harness.client.post("/api/v1/jobs", json={"name": "job", "run": "true"}, headers=key)
    await harness.client.get("/api/v1/jobs")
    await harness.post("jobs", {"name": "job", "run": "true"})  # its name is taken
    await harness.post("jobs", {"name": "JOB", "run": "true"})  # no name
    await harness.post("jobs/nothing/cancel")
    assert [one.action for one in await audit(harness)] == ["submit_job"]


async def test_a_change_that_fails_has_no_row_and_a_row_that_fails_has_no_change(harness: Harness) -> None:
    await harness.submit("job")
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit ADD CONSTRAINT one CHECK (action = 'submit_job')"))
    assert (await harness.post("jobs/job/pause")).status_code == 500
    assert (await harness.job("job")).state == "PENDING"
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit DROP CONSTRAINT one"))
        await connection.execute(
            text("ALTER TABLE audit ADD CONSTRAINT one CHECK (action != 'submit_job') NOT VALID")
        )
    assert (await harness.post("jobs", {"name": "other", "run": "true"})).status_code == 500
    assert (await harness.client.get("/api/v1/jobs/other")).status_code == 404


async def test_refusals_are_told_and_floods_of_them_counted(harness: Harness) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    for _ in range(ONE_BY_ONE + 20):
        await harness.client.post("/api/v1/jobs/job/cancel", headers=wrong)
    await harness.client.get("/api/v1/jobs", headers=wrong)
    told = await audit(harness)
    assert [(one.action, one.status, one.actor) for one in told] == [
        ("cancel_job", 401, "unknown")
    ] * ONE_BY_ONE


async def test_a_refusal_of_anything_can_be_written(harness: Harness) -> None:
    for name in ("%01", "%ff%fe", "x" * 5000):
        answer = await harness.client.post(
            f"/api/v1/jobs/{name}/cancel", headers={"Authorization": "Bearer wrong"}
        )
        assert answer.status_code == 401
    assert len(await audit(harness)) == 3


async def test_no_value_and_no_token_is_told(harness: Harness) -> None:
    await harness.client.put("/api/v1/projects/default/secrets/key", json={"value": "swordfish"})
    await harness.submit("job", env={"PASSWORD": "swordfish"}, run="echo swordfish")
    await harness.client.post(
        "/api/v1/jobs/hw_" + "a" * 43 + "/cancel", headers={"Authorization": "Bearer x"}
    )
    told = str(await audit(harness))
    assert "swordfish" not in told
    assert "a" * 43 not in told


async def test_agents_join_by_name_and_report_in_silence(harness: Harness) -> None:
    agent = await harness.join("alpha")
    await agent.report()
    refused = await harness.client.post(
        "/api/v1/agents", json=join_body("beta"), headers={"Authorization": "Bearer no"}
    )
    assert refused.status_code == 401
    told = [(one.action, one.status, one.detail.get("name")) for one in await audit(harness)]
    assert told == [("join", 201, "alpha"), ("join", 401, None)]


async def test_readers_see_their_projects(harness: Harness) -> None:
    await harness.submit("job")
    await harness.client.put("/api/v1/cluster", json={"policy": "sla"})
    assert {one.project for one in await audit(harness, project="default")} == {"default"}
    assert await audit(harness, actor="nobody") == []
    assert await audit(harness, since=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
    assert len(await audit(harness, until=(datetime.now(UTC) + timedelta(hours=1)).isoformat())) >= 1
    for bad in ({"since": "2026-01-01T00:00:00"}, {"cursor": "x"}, {"project": "NO"}):
        assert (await harness.client.get("/api/v1/audit", params=bad)).status_code == 422
    async with harness.service.database.begin() as tx:
        of_others = await tx.audit.page(AuditFilter(projects=frozenset({"vision"})), limit=10, cursor=None)
    assert of_others.items == []


async def test_pages_go_on_where_the_last_one_ended(harness: Harness) -> None:
    for number in range(3):
        await harness.submit(f"job-{number}")
    first: httpx.Response = await harness.client.get("/api/v1/audit", params={"limit": 2})
    page = Page[AuditView].model_validate_json(first.content)
    rest = await audit(harness, cursor=page.next_cursor)
    assert [one.detail["name"] for one in [*page.items, *rest]] == ["job-2", "job-1", "job-0"]


async def test_the_log_is_append_only_for_a_year(harness: Harness) -> None:
    await harness.submit("job")
    engine = harness.service.database.engine
    for statement in (
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "TRUNCATE audit, jobs CASCADE",
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as connection:
                await connection.execute(text(statement))
    assert len(await audit(harness)) == 1
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO audit (at, actor, action, target, status, address, request_id) "
                "SELECT now() - days * interval '1 day', 'old', 'x', '/', 200, '', '' FROM (VALUES (300), (400)) one (days)"
            )
        )
    await retain(harness.service.database, harness.service.storage, keep_days=1, now=datetime.now(UTC))
    async with engine.begin() as connection:
        ages = await connection.execute(text("SELECT now() - at > interval '1 year' FROM audit"))
        assert sorted(ages.scalars()) == [False, False]
