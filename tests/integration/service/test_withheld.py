"""A node whose agent withholds its slots: it is there, says why, and no job is placed on it until the agent takes jobs again."""

from __future__ import annotations

from typing import Any

from headway.contract.agents import JoinReply
from headway.contract.views.diagnosis import DiagnosisView, Level
from headway.contract.views.jobs import JobState, Page
from headway.contract.views.nodes import NodeView
from tests.integration.service.conftest import JOIN_TOKEN, Agent, Harness, join_body

WHY = "jobs are not kept apart by landlock on this host: a job could read /var/lib/agent/credentials.json"


def slots(count: int, why: str) -> list[dict[str, Any]]:
    return [{"index": index, "device_kind": "cpu", "withheld": why} for index in range(count)]


async def join(harness: Harness, why: str) -> Agent:
    response = await harness.client.post(
        "/api/v1/agents",
        json=join_body("alpha") | {"slots": slots(2, why)},
        headers={"Authorization": f"Bearer {JOIN_TOKEN}"},
    )
    assert response.status_code == 201, response.text
    joined = JoinReply.model_validate_json(response.content)
    return Agent(harness.client, harness.service.redis, "alpha", joined)


async def node(harness: Harness) -> NodeView:
    answer = await harness.client.get("/api/v1/nodes")
    (one,) = Page[NodeView].model_validate_json(answer.content).items
    return one


async def level(harness: Harness) -> Level:
    answer = await harness.client.get("/api/v1/diagnosis")
    checks = DiagnosisView.model_validate_json(answer.content).checks
    (check,) = [one for one in checks if one.name == "isolation"]
    assert (WHY in check.found) == (check.level is Level.FAIL)
    return check.level


async def test_a_node_that_withholds_its_slots_gets_no_job_until_it_does_no_more(harness: Harness) -> None:
    agent = await join(harness, WHY)
    await harness.submit()
    await harness.turn()
    waiting = await harness.job()
    assert waiting.state is JobState.PENDING
    assert "quarantine" in waiting.message, waiting.message
    shown = await node(harness)
    assert shown.message == f"takes no jobs: {WHY}"
    assert {slot.withheld for slot in shown.slots} == {WHY}
    assert await level(harness) is Level.FAIL
    await agent.report(slots=slots(2, ""))
    await harness.turn()
    assert (await harness.job()).state is JobState.STARTING
    assert await level(harness) is Level.OK
    assert (await node(harness)).message == ""
