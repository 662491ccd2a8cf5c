"""The cluster, its policy and its rounds, over the real API, Postgres and Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headway.contract.agents import NodeState
from headway.contract.views.decisions import ClusterView, ExplanationView, RoundView
from headway.contract.views.jobs import JobState, JobView, Page
from service.domain.policies.registry import POLICIES
from service.usecases.ports.facts import WakeUp
from tests.integration.service.conftest import Harness, harness_of, make_settings
from tests.integration.service.test_life_of_a_job import start


async def cluster(harness: Harness) -> ClusterView:
    response = await harness.client.get("/api/v1/cluster")
    assert response.status_code == 200, response.text
    return ClusterView.model_validate_json(response.content)


async def test_the_cluster_in_numbers(database_url: str, redis_url: str, tmp_path: Path) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}", usd_per_slot_h={"cpu": 0.5})
    async with harness_of(settings) as harness:
        assert (await cluster(harness)).kinds == []
        agent = await harness.join("alpha", slots=3)
        await harness.join("beta", slots=2, kind="a100")
        await harness.post("nodes/beta/cordon")
        await harness.submit(resources={"devices": ["cpu"]})
        await start(harness, agent)
        await harness.submit("other", resources={"devices": ["h100"]})
        seen = await cluster(harness)
    numbers = {
        one.device_kind: (one.slots, one.in_service, one.held, one.free, one.usd_per_slot_h)
        for one in seen.kinds
    }
    assert numbers == {"cpu": (3, 3, 1, 2, 0.5), "a100": (2, 0, 0, 0, 0.0)}
    assert seen.nodes == {NodeState.READY: 1, NodeState.CORDONED: 1}
    assert seen.jobs == {JobState.RUNNING: 1, JobState.PENDING: 1}
    assert seen.usd_per_h == 0.5


async def test_a_policy_is_chosen_while_the_service_runs(harness: Harness) -> None:
    before = await cluster(harness)
    assert (before.policy, before.parameters) == ("goodput", {})
    assert [one.name for one in before.policies] == list(POLICIES)
    with capture_logs() as logs:
        async with harness.service.wake_ups.heard((WakeUp.ROUND, "")) as heard:
            response = await harness.client.put("/api/v1/cluster", json={"policy": "srtf"})
            assert response.status_code == 200, response.text
            await asyncio.wait_for(heard.wait(), 30)
    assert ClusterView.model_validate_json(response.content).policy == "srtf"
    assert (await cluster(harness)).policy == "srtf"
    (line,) = [line for line in logs if line["event"] == "policy_chosen"]
    assert (line["policy"], line["parameters"]) == ("srtf", {})


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"policy": "best"}, "policy", "there are goodput"),
        ({"policy": "fifo", "parameters": {"speed": 1}}, "parameters.speed", "no parameter 'speed'"),
        ({"policy": "sia", "parameters": {"p": "much"}}, "parameters.p", "number"),
        ({"policy": "sia", "parameters": {"p": 1}}, "parameters.p", "below 0"),
        ({}, "policy", "required"),
        ({"policy": "fifo", "polcy": 1}, "polcy", "Extra"),
    ],
)
async def test_a_policy_that_cannot_be_followed_is_refused(
    harness: Harness, body: dict[str, object], field: str, says: str
) -> None:
    response = await harness.client.put("/api/v1/cluster", json=body)
    assert response.status_code == 422, response.text
    errors = response.json()["errors"]
    assert any(one["field"].startswith(field) for one in errors), errors
    assert says in response.json()["detail"]
    assert (await cluster(harness)).policy == "goodput"


async def test_rounds_are_read_by_id_in_pages_and_as_the_latest(harness: Harness) -> None:
    missing = await harness.client.get("/api/v1/rounds/latest")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    agent = await harness.join(slots=4)
    for name in ("one", "two", "three"):
        await harness.submit(name)
        await start(harness, agent, name)
    first = await harness.client.get("/api/v1/rounds", params={"limit": 2})
    page = Page[RoundView].model_validate_json(first.content)
    assert [one.changes[0].action for one in page.items] == ["start", "start"]
    rest = await harness.client.get("/api/v1/rounds", params={"limit": 2, "cursor": page.next_cursor})
    assert len(rest.json()["items"]) == 1
    assert 'rel="next"' in first.headers["link"]
    one = await harness.client.get(f"/api/v1/rounds/{page.items[0].id}")
    assert RoundView.model_validate_json(one.content) == page.items[0]
    latest = await harness.client.get("/api/v1/rounds/latest")
    assert latest.status_code == 200
    assert (await harness.client.get("/api/v1/rounds", params={"cursor": "x"})).status_code == 422


async def test_who_has_no_token_sees_and_changes_nothing(harness: Harness) -> None:
    nobody = {"Authorization": "Bearer wrong"}
    for path in ("cluster", "rounds", "rounds/latest"):
        assert (await harness.client.get(f"/api/v1/{path}", headers=nobody)).status_code == 401
    refused = await harness.client.put("/api/v1/cluster", json={"policy": "fifo"}, headers=nobody)
    assert refused.status_code == 401


async def test_an_explanation_has_the_policy_and_the_prices(harness: Harness) -> None:
    await harness.submit(elastic={"min": 1, "max": 4})
    before = await harness.client.get("/api/v1/jobs/job/explain")
    assert ExplanationView.model_validate_json(before.content).policy is None
    agent = await harness.join(slots=1)
    await start(harness, agent)
    await harness.submit("other")
    await harness.turn()
    response = await harness.client.get("/api/v1/jobs/other/explain")
    seen = ExplanationView.model_validate_json(response.content)
    assert (seen.policy, seen.action) == ("goodput", "wait")
    waiting = await harness.job("other")
    assert waiting.present == seen.message
    listed = Page[JobView].model_validate_json((await harness.client.get("/api/v1/jobs")).content)
    assert {one.name: one.present for one in listed.items}["other"] == seen.message
    assert seen.unit
    assert [one.slots for one in seen.outlook] == [1]
    assert (await harness.client.get("/api/v1/jobs/nobody/explain")).status_code == 404
