"""By what agents join: tokens that work once, the permanent one, and their own when they come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError

from headway.contract.agents import JoinReply, NodeState
from headway.contract.credentials import NodeCredentials
from headway.contract.views.identity import NewJoinToken
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import JOIN_TOKEN, Harness, join_body


async def make_token(harness: Harness, **wanted: Any) -> NewJoinToken:
    answer = await harness.post("join-tokens", wanted)
    assert answer.status_code == 201, answer.text
    return NewJoinToken.model_validate_json(answer.content)


async def try_join(harness: Harness, token: str, name: str = "alpha", **changes: Any) -> httpx.Response:
    return await harness.client.post(
        "/api/v1/agents",
        json={**join_body(name), **changes},
        headers={"Authorization": f"Bearer {token}"},
    )


async def joined(harness: Harness, token: str, name: str = "alpha", **changes: Any) -> JoinReply:
    answer = await try_join(harness, token, name, **changes)
    assert answer.status_code == 201, answer.text
    return JoinReply.model_validate_json(answer.content)


async def report(harness: Harness, node: JoinReply, token: str | None = None) -> int:
    answer = await harness.client.post(
        f"/api/v1/agents/{node.node_id}/reports",
        json={"instance": "instance-alpha"},
        headers={"Authorization": f"Bearer {token or node.node_token}"},
    )
    return answer.status_code


async def renew(harness: Harness, node: JoinReply, token: str) -> httpx.Response:
    return await harness.client.post(
        f"/api/v1/agents/{node.node_id}/credentials", headers={"Authorization": f"Bearer {token}"}
    )


async def test_a_join_token_works_once(harness: Harness) -> None:
    made = await make_token(harness, name="rack 7")
    await joined(harness, made.token)
    refused = await try_join(harness, made.token, "beta")
    assert refused.status_code == 401
    assert "headway join-token create" in refused.json()["detail"]
    (listed,) = (await harness.client.get("/api/v1/join-tokens")).json()["items"]
    assert (listed["uses_left"], listed["name"], listed["created_by"]) == (0, "rack 7", "admin")
    assert "token" not in listed


async def test_of_two_agents_at_once_one_joins(harness: Harness) -> None:
    made = await make_token(harness)
    answers = await asyncio.gather(
        *(try_join(harness, made.token, name) for name in ("alpha", "beta", "gamma"))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 401, 401]


async def test_a_token_for_several_agents(harness: Harness) -> None:
    made = await make_token(harness, uses=2)
    for name in ("alpha", "beta"):
        await joined(harness, made.token, name)
    assert (await try_join(harness, made.token, "gamma")).status_code == 401


async def test_who_did_not_hear_the_answer_asks_again(harness: Harness) -> None:
    made = await make_token(harness)
    first = await joined(harness, made.token)
    second = await joined(harness, made.token)
    assert first.node_id == second.node_id
    assert await report(harness, second) == 200
    assert await report(harness, first) == 401
    assert (await try_join(harness, made.token, instance="instance-thief")).status_code == 401


async def test_a_join_that_fails_uses_nothing_up(harness: Harness) -> None:
    made = await make_token(harness)
    twice = {**join_body("alpha"), "slots": [{"index": 0, "device_kind": "cpu"}] * 2}
    answer = await harness.client.post(
        "/api/v1/agents", json=twice, headers={"Authorization": f"Bearer {made.token}"}
    )
    assert answer.status_code == 422
    await joined(harness, made.token)


async def test_a_revoked_token_does_not_work_and_who_joined_stays(harness: Harness) -> None:
    made = await make_token(harness, uses=5)
    node = await joined(harness, made.token)
    assert (await harness.client.delete(f"/api/v1/join-tokens/{made.id}")).status_code == 204
    assert (await harness.client.delete(f"/api/v1/join-tokens/{made.id}")).status_code == 404
    assert (await try_join(harness, made.token, "beta")).status_code == 401
    assert await report(harness, node) == 200


@pytest.mark.slow
async def test_a_token_expires(harness: Harness) -> None:
    made = await make_token(harness, expires_in_s=3600)
    async with harness.service.database.begin() as tx:
        found = await tx.credentials.find_join_token("no such digest")
        assert found is None
        assert not await tx.credentials.take_join_token(made.id, made.expires_at)
        assert await tx.credentials.take_join_token(made.id, made.expires_at - timedelta(seconds=1))


@pytest.mark.parametrize("wanted", [{"uses": 0}, {"uses": "many"}, {"expires_in_s": 0}, {"color": "red"}])
async def test_bad_requests_are_refused(harness: Harness, wanted: dict[str, Any]) -> None:
    assert (await harness.post("join-tokens", wanted)).status_code == 422


async def test_an_agent_that_comes_back_needs_no_join_token(harness: Harness) -> None:
    made = await make_token(harness)
    before = await joined(harness, made.token)
    after = await joined(harness, before.node_token)
    assert after.node_id == before.node_id
    # The answer may have been lost: what the agent has still works, for another try too.
    assert await report(harness, before) == 200
    again = await joined(harness, before.node_token)
    assert await report(harness, again) == 200
    assert await report(harness, before) == 401
    assert await report(harness, after) == 401
    assert (await try_join(harness, before.node_token)).status_code == 401


async def test_nobody_joins_as_another_node(harness: Harness) -> None:
    alpha = await joined(harness, JOIN_TOKEN)
    beta = await joined(harness, JOIN_TOKEN, "beta")
    assert (await try_join(harness, alpha.node_token, "beta")).status_code == 401
    assert (await try_join(harness, alpha.node_token, "gamma")).status_code == 401
    assert (await try_join(harness, alpha.node_token, instance="instance-other")).status_code == 401
    assert (await try_join(harness, JOIN_TOKEN, instance="instance-other")).status_code == 409
    for node in (alpha, beta):
        answer = await harness.client.post(
            f"/api/v1/agents/{node.node_id}/reports",
            json={"instance": "instance-alpha" if node is alpha else "instance-beta"},
            headers={"Authorization": f"Bearer {node.node_token}"},
        )
        assert answer.status_code == 200


async def test_credentials_are_renewed_and_the_old_ones_void_once_the_new_are_used(harness: Harness) -> None:
    node = await joined(harness, JOIN_TOKEN)
    assert node.renew_credentials_s is not None
    lost = NodeCredentials.model_validate_json((await renew(harness, node, node.node_token)).content)
    answer = await renew(harness, node, node.node_token)
    fresh = NodeCredentials.model_validate_json(answer.content)
    assert answer.headers["Cache-Control"] == "no-store"
    assert await report(harness, node) == 200
    assert await report(harness, node, lost.node_token) == 401
    assert await report(harness, node, fresh.node_token) == 200
    assert await report(harness, node) == 401
    assert (await renew(harness, node, node.node_token)).status_code == 401
    async with Redis.from_url(fresh.redis_url) as client:
        await client.xread({node.stream: "0-0"})
    async with Redis.from_url(node.redis_url) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()


async def test_a_node_that_was_forgotten_loses_its_access(harness: Harness) -> None:
    node = await joined(harness, JOIN_TOKEN)
    async with harness.service.database.begin() as tx:
        known = await tx.nodes.lock(node.node_id)
        await tx.nodes.save(replace(known, state=NodeState.LOST))
    async with Redis.from_url(node.redis_url) as client:
        assert await client.ping(), "one that is lost may come back"
    harness.clock.skipped += timedelta(days=200)
    await harness.scheduler.retain()
    await harness.scheduler.retain()
    async with Redis.from_url(node.redis_url) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()


async def test_a_job_with_an_image_waits_for_a_host_with_a_container_engine(harness: Harness) -> None:
    await harness.join("alpha")
    await harness.submit("imaged", image="registry.example.com/train:1")
    await harness.turn()
    waiting = await harness.job("imaged")
    assert (waiting.state, waiting.reason) == (JobState.PENDING, Reason.NO_CONTAINER_ENGINE)
    await joined(harness, JOIN_TOKEN, "beta", container_engine="podman")
    await harness.turn()
    started = await harness.job("imaged")
    assert list(started.allocation) == ["beta"]
    nodes = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert {one["name"]: one["container_engine"] for one in nodes} == {"alpha": None, "beta": "podman"}
    page = (await harness.client.get("/nodes/beta")).text
    assert "<dt>Containers</dt><dd>Podman" in page
    assert "it takes no job with an image" in (await harness.client.get("/nodes/alpha")).text


@pytest.mark.parametrize("what", ["credentials", "storage", "reports"])
async def test_no_node_has_a_nul_in_its_id(harness: Harness, what: str) -> None:
    found = await harness.client.post(
        f"/api/v1/agents/n%00/{what}", headers={"Authorization": "Bearer x"}, json={}
    )
    assert found.status_code == 422
