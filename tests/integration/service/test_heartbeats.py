"""Reports without news: they renew leases together, and whatever is out of the ordinary is told as ever."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from starlette.types import Message

from headway.contract.agents import NodeState
from service.domain.nodes.silence import REPORTS_PER_S
from tests.integration.service.conftest import Agent, Harness, entry, like_the_first_node, run_of
from tests.waiting import until


async def beat(agent: Agent, token: str | None = None, **changes: Any) -> httpx.Response:
    body = {"instance": f"instance-{agent.name}", **changes}
    return await agent.client.post(
        f"/api/v1/agents/{agent.joined.node_id}/reports",
        json=body,
        headers={"Authorization": f"Bearer {token or agent.joined.node_token}"},
    )


async def seen_at(harness: Harness, agent: Agent) -> datetime:
    async with harness.service.database.begin() as tx:
        return (await tx.nodes.lock(agent.joined.node_id)).seen_at


async def run_job(harness: Harness, agent: Agent) -> dict[str, Any]:
    """A job that runs on the agent, as the agent says that it holds it."""
    await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    holding = {"job_id": run.job_id, "generation": run.generation}
    await agent.report(entry("ranks_started", run, how="zygote"), holding=[holding])
    return holding


async def test_every_lease_is_renewed_when_many_report_at_once(harness: Harness) -> None:
    agents = [await harness.join(f"node-{number}") for number in range(20)]
    before = [await seen_at(harness, agent) for agent in agents]
    answers = await asyncio.gather(*(beat(agent) for agent in agents))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["lease_s"] for answer in answers} == {60.0}
    after = [await seen_at(harness, agent) for agent in agents]
    assert all(late > early for early, late in zip(before, after, strict=True))


async def test_a_wrong_token_renews_nothing_even_beside_the_right_one(harness: Harness) -> None:
    agent, other = await harness.join("alpha"), await harness.join("beta")
    before = await seen_at(harness, agent)
    assert (await beat(agent, token=other.joined.node_token)).status_code == 401
    assert await seen_at(harness, agent) == before
    wrong, right, strange = await asyncio.gather(
        beat(agent, token="wrong"), beat(agent), beat(agent, token=other.joined.node_token)
    )
    assert [one.status_code for one in (wrong, right, strange)] == [401, 200, 401]


async def test_another_instance_is_refused(harness: Harness) -> None:
    agent = await harness.join()
    answer = await beat(agent, instance="instance-another")
    assert (answer.status_code, answer.json()["code"]) == (401, "wrong_token")


async def test_what_a_node_holds_is_its_own_or_must_stop(harness: Harness) -> None:
    agent = await harness.join()
    holding = await run_job(harness, agent)
    assert (await beat(agent, holding=[holding])).json()["stop"] == []
    stale = {**holding, "generation": 7}
    assert (await beat(agent, holding=[holding, stale])).json()["stop"] == [stale]


async def test_slots_are_kept_as_the_agent_says_they_are(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    await beat(agent, slots=[{"index": 0, "device_kind": "cpu", "health": {"temperature_c": 44}}])
    await beat(agent)
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert node["slots"][0]["health"]["temperature_c"] == 44


async def test_a_lost_node_comes_back_with_a_heartbeat(harness: Harness) -> None:
    agent = await harness.join()
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("UPDATE nodes SET state = 'LOST'"))
    assert (await beat(agent)).status_code == 200
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert node["state"] == NodeState.READY


async def test_a_node_that_somebody_works_on_holds_up_nobody_else(harness: Harness) -> None:
    busy, free = await harness.join("busy"), await harness.join("free")
    async with harness.service.database.begin() as tx:
        await tx.nodes.lock("busy")
        waits = asyncio.create_task(beat(busy))
        assert (await asyncio.wait_for(beat(free), 60)).status_code == 200
        assert not waits.done()
    assert (await waits).status_code == 200


@pytest.mark.slow
async def test_agents_report_less_often_when_there_are_many(harness: Harness) -> None:
    agent = await harness.join()
    await beat(agent)
    assert (await beat(agent)).json()["report_every_s"] is None
    await like_the_first_node(harness, 4 * REPORTS_PER_S)
    harness.clock.skipped += timedelta(seconds=6)

    async def slowed() -> bool:
        said = (await beat(agent)).json()["report_every_s"]
        return said is not None and 4.0 <= said <= 5.0

    await until(slowed)


async def test_a_client_that_goes_away_in_the_middle_is_no_error_of_the_service(harness: Harness) -> None:
    agent = await harness.join()
    job = await harness.submit()
    await harness.turn()
    path = f"/api/v1/agents/{agent.joined.node_id}/logs/{job.id}/1/0"
    headers = [(b"authorization", f"Bearer {agent.joined.node_token}".encode()), (b"host", b"headway")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"offset=0",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("headway", 80),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    transport = harness.client._transport
    assert isinstance(transport, httpx.ASGITransport)
    await transport.app(scope, receive, send)
    assert sent[0]["status"] == 400
