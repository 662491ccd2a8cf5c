"""Leases that users request for a job: who may, within which limits, and how long they last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headway.contract.values.markets import Market
from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView
from service.domain.rental.rental_targets import RentalRules
from tests.integration.service.cloud import Cloud, small_offer
from tests.integration.service.conftest import Harness, harness_of, make_settings
from tests.integration.service.test_rent import Stage


@pytest_asyncio.fixture
async def stage(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A service that rents from a cloud, with machines of two slots on both markets."""
    cloud = Cloud(lambda: datetime.now(UTC))
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    async with harness_of(settings, providers=[cloud]) as harness:
        cloud.now = harness.clock.now
        cloud.sells.append(small_offer(harness.clock.now()))
        yield Stage(harness, cloud, rules=RentalRules(max_machines=10, idle_s=0.0))


def plan(
    machines: int = 1, market: Market = Market.SPOT, most: float = 10.0, **fields: Any
) -> dict[str, Any]:
    group = {
        "provider": "cloud",
        "region": "here",
        "instance_type": "small",
        "market": market,
        "machines": machines,
        **fields,
    }
    return {"groups": [group], "max_usd_per_h": most}


async def lease(harness: Harness, body: dict[str, Any], key: str = "k", **headers: str) -> httpx.Response:
    return await harness.client.post(
        "/api/v1/jobs/job/machines", json=body, headers={"Idempotency-Key": key, **headers}
    )


async def test_the_machines_of_a_plan_are_rented_kept_for_the_job_and_then_returned(stage: Stage) -> None:
    harness = stage.harness
    job = await harness.submit("job", market="mixed")
    answer = await lease(harness, plan(2))
    assert answer.status_code == 201, answer.text
    machines = Page[MachineView].model_validate_json(answer.content).items
    assert [(one.state, one.reason, one.job_id) for one in machines] == [("wanted", "LEASED", job.id)] * 2
    result = await stage.turn()
    assert (result.wanted, result.launched) == (0, 2), "the leases suffice, and the loop launches them"
    assert len(await stage.machines()) == 2
    for instance in stage.cloud.running():
        await stage.joins(instance)
    stage.skip(600)
    await stage.turn()
    assert {one.state for one in await stage.machines()} == {"running"}, "one is idle, and kept"

    await harness.post("jobs/job/cancel", {"force": True})
    await stage.turn()
    assert {(one.state, one.reason) for one in await stage.machines()} == {("ending", "IDLE")}
    await stage.turn()
    assert stage.cloud.running() == []


async def test_a_repeated_request_rents_once(stage: Stage) -> None:
    harness = stage.harness
    await harness.submit("job")
    first, again = await lease(harness, plan(2)), await lease(harness, plan(2))
    assert first.json()["items"] == again.json()["items"]
    assert len(await stage.machines()) == 2
    for other in (plan(3), plan(1), plan(2, Market.ON_DEMAND)):
        answer = await lease(harness, other)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict"), answer.text
    assert (await lease(harness, plan(2), key="another")).status_code == 201
    assert len(await stage.machines()) == 4


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (plan(3, most=0.35), 409, "rental_refused"),
        (plan(11), 409, "rental_refused"),
        (plan(1, instance_type="large"), 422, "invalid_field"),
        (plan(1, provider="ec2"), 422, "invalid_field"),
        (plan(0), 422, "invalid_field"),
        ({"groups": [], "max_usd_per_h": 1.0}, 422, "invalid_field"),
    ],
    ids=["price", "machines", "type", "provider", "none", "no groups"],
)
async def test_what_is_refused_rents_nothing(
    stage: Stage, body: dict[str, Any], status: int, code: str
) -> None:
    await stage.harness.submit("job")
    answer = await lease(stage.harness, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert await stage.machines() == []


async def test_the_cost_limit_of_the_job_bounds_leases(stage: Stage) -> None:
    await stage.harness.submit("job", goal={"max_cost_usd": 5})
    silent = await lease(stage.harness, plan(1))
    assert (silent.status_code, silent.json()["code"]) == (422, "invalid_field"), silent.text
    assert [one["field"] for one in silent.json()["errors"]] == ["expected_cost_usd"]
    refused = await lease(stage.harness, {**plan(1), "expected_cost_usd": 5.01})
    assert (refused.status_code, refused.json()["code"]) == (409, "rental_refused"), refused.text
    assert await stage.machines() == []
    assert (await lease(stage.harness, {**plan(1), "expected_cost_usd": 4.99})).status_code == 201
    await stage.harness.submit("other")
    assert (
        await stage.harness.client.post(
            "/api/v1/jobs/other/machines", json={**plan(1), "expected_cost_usd": 1e6}
        )
    ).status_code == 201, "it has no limit"


async def test_a_hard_budget_bounds_leases(stage: Stage) -> None:
    await stage.harness.submit("job")
    budget = {"kind": "hourly_cap", "usd": 0.5, "hard": True}
    assert (await stage.harness.client.put("/api/v1/budgets/all", json=budget)).status_code == 201
    refused = await lease(stage.harness, plan(2, Market.ON_DEMAND))
    assert (refused.status_code, refused.json()["code"]) == (409, "rental_refused"), refused.text
    assert (await lease(stage.harness, plan(1, Market.ON_DEMAND))).status_code == 201
    refused = await lease(stage.harness, plan(1), key="another")
    assert refused.status_code == 409, "0.40 + 0.12 dollars an hour"


async def test_no_machine_is_leased_for_a_job_that_has_ended(stage: Stage) -> None:
    await stage.harness.submit("job")
    await stage.harness.post("jobs/job/cancel", {"force": True})
    answer = await lease(stage.harness, plan())
    assert (answer.status_code, answer.json()["code"]) == (409, "rental_refused"), answer.text
    answer = await stage.harness.client.post("/api/v1/jobs/nobody/machines", json=plan())
    assert answer.status_code == 404


async def test_operators_lease_and_the_audit_record_has_it(stage: Stage) -> None:
    harness = stage.harness
    await harness.submit("job")

    async def token(role: str) -> str:
        wanted = {"name": role, "robot": True, "role": role, "project": "default", "expires_in_s": 3600}
        return str((await harness.client.post("/api/v1/tokens", json=wanted)).json()["token"])

    refused = await lease(harness, plan(), Authorization=f"Bearer {await token('user')}")
    assert refused.status_code == 403
    allowed = await lease(harness, plan(), Authorization=f"Bearer {await token('operator')}")
    assert allowed.status_code == 201, allowed.text
    entries = (await harness.client.get("/api/v1/audit")).json()["items"]
    (entry,) = [one for one in entries if one["action"] == "lease_machines" and one["status"] == 201]
    assert entry["target"] == "/api/v1/jobs/job/machines"
    assert entry["detail"]["max_usd_per_h"] == 10.0
    assert [one["status"] for one in entries if one["action"] == "lease_machines"] == [201, 403]


async def test_what_recommend_shows_is_what_is_rented(stage: Stage) -> None:
    """The groups of the best plan, as the command line sends them."""
    harness = stage.harness
    spec = {"name": "job", "run": "python -V", "market": "mixed", "elastic": {"min": 2, "max": 8}}
    assert (await harness.client.post("/api/v1/jobs", json=spec)).status_code == 201
    asked = {"spec": spec, "provider": "cloud", "objective": "cost", "samples": 1e6}
    asked["speed"] = {"device_kind": "cpu", "samples_per_s": 10}
    best = (await harness.post("recommendations", asked)).json()["plans"][0]
    fields = ("provider", "region", "zone", "instance_type", "market", "machines")
    body = {
        "groups": [{name: one[name] for name in fields} for one in best["groups"]],
        "max_usd_per_h": best["usd_per_h"],
    }
    answer = await lease(harness, body)
    assert answer.status_code == 201, answer.text
    leased = answer.json()["items"]
    assert len(leased) == sum(one["machines"] for one in best["groups"])
    assert sum(one["usd_per_h"] for one in leased) == pytest.approx(best["usd_per_h"])
