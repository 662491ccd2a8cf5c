"""Probes that the service asks agents for, and what follows from their results and from what jobs met."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headway.contract.agents import JoinReply, ReportReply
from headway.contract.links import LinkProbe, PeerProbe, probe_token
from headway.contract.views.hosts import HostsView
from headway.contract.views.jobs import JobState, Reason
from service.domain.nodes.links import JOB_BELIEVED_S
from service.usecases.jobs.unreachable import note_unreachable
from service.usecases.nodes.links import ProbePlan
from tests.integration.service.conftest import JOIN_TOKEN, Agent, Harness, join_body


class Prober:
    """An agent that takes part in probes, on a host of its own."""

    def __init__(self, agent: Agent, number: int) -> None:
        self.agent, self.id = agent, agent.joined.node_id
        self.address, self.port, self.key = f"10.1.0.{number}", 20063, f"key-{number}"

    async def orders(self, plan: ProbePlan) -> dict[str, PeerProbe]:
        await plan.refresh()
        return {one.peer: one for one in plan.of(self.id)}

    async def found(self, peer: Prober, failure: str = "") -> ReportReply:
        probe = LinkProbe(
            peer=peer.id, address=peer.address, port=peer.port, failure=failure, connect_s=0.001
        )
        return await self.agent.report(
            {"kind": "links_probed", "clock_ahead_s": 0.25, "pairs": [probe.model_dump()]}
        )

    async def cannot_reach(self, peer: Prober) -> None:
        await self.found(peer, f"{self.agent.name} cannot reach {peer.address}:{peer.port}: no answer")


async def three(harness: Harness) -> list[Prober]:
    found = []
    for number, name in enumerate(("host-a", "host-b", "host-c"), start=1):
        body: dict[str, Any] = {**join_body(name, slots=1), "address": f"10.1.0.{number}"}
        body["host"] = {"probe_port": 20063, "probe_key": f"key-{number}", "interface": "eth0", "mtu": 1500}
        headers = {"Authorization": f"Bearer {JOIN_TOKEN}"}
        response = await harness.client.post("/api/v1/agents", json=body, headers=headers)
        joined = JoinReply.model_validate_json(response.content)
        found.append(Prober(Agent(harness.client, harness.service.redis, name, joined), number))
    return found


async def hosts(harness: Harness) -> HostsView:
    response = await harness.client.get("/api/v1/hosts")
    return HostsView.model_validate_json(response.content)


def plan_of(harness: Harness) -> ProbePlan:
    return ProbePlan(harness.service.database, harness.service.clock.now)


async def test_agents_are_asked_for_every_pair_with_a_token_of_the_probed_host(harness: Harness) -> None:
    a, b, c = await three(harness)
    plan = plan_of(harness)
    orders = await a.orders(plan)
    assert set(orders) == {b.id, c.id}
    order = orders[b.id]
    assert (order.address, order.port) == (b.address, b.port)
    assert order.token == probe_token(b.key, a.id, order.nonce, order.size_bytes)
    await a.found(b)
    assert (await a.orders(plan))[b.id].size_bytes > order.size_bytes  # reached: now its bandwidth
    await a.cannot_reach(c)
    assert c.id not in await a.orders(plan)  # not at once


async def test_hosts_show_the_failing_pair_and_never_the_key(harness: Harness) -> None:
    a, b, c = await three(harness)
    for one, other in ((b, a), (a, c), (c, a), (b, c), (c, b)):
        await one.found(other)
    await a.cannot_reach(b)
    response = await harness.client.get("/api/v1/hosts")
    assert "key-1" not in response.text
    view = await hosts(harness)
    assert [(link.source, link.target, link.by_job) for link in view.links] == [("host-a", "host-b", False)]
    assert [check.level for check in view.checks] == ["fail"]
    assert "the other direction works" in view.checks[0].found
    assert {host.clock_ahead_s for host in view.hosts} == {0.25}
    await a.found(b)
    assert (await hosts(harness)).links == []


async def test_a_host_behind_nat_is_named_and_gets_jobs_of_one_node(harness: Harness) -> None:
    a, b, nat = await three(harness)
    for one, other in ((a, b), (b, a), (nat, a), (nat, b)):
        await one.found(other)
    await a.cannot_reach(nat)
    await b.cannot_reach(nat)
    (check,) = (await hosts(harness)).checks
    assert check.level == "fail"
    assert "behind NAT" in check.found  # its requests come from another address than it advertises
    nodes = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert [node["name"] for node in nodes if "one node only" in node["message"]] == ["host-c"]
    await harness.submit("three", elastic={"min": 3, "max": 3})
    await harness.submit("two", elastic={"min": 2, "max": 2})
    await harness.turn()
    waiting = await harness.job("three")
    assert (waiting.state, waiting.reason) == (JobState.PENDING, Reason.UNREACHABLE)
    nodes = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert {node["name"] for node in nodes if node["slots"][0]["job_name"] == "two"} == {"host-a", "host-b"}


async def test_what_a_job_met_keeps_hosts_apart_until_a_later_probe(harness: Harness) -> None:
    a, b, c = await three(harness)
    for one, other in ((a, b), (b, a), (a, c), (c, a), (b, c), (c, b)):
        await one.found(other)
    failure = "host-a cannot reach 10.1.0.2:41000: refused"

    async def met(age_s: float) -> None:
        at = harness.service.clock.now() - timedelta(seconds=age_s)
        async with harness.service.database.begin() as tx:
            await note_unreachable(tx, a.id, b.id, address=b.address, port=41000, failure=failure, at=at)

    await met(0.0)
    await a.found(b)
    (link,) = (await hosts(harness)).links
    assert (link.failure, link.by_job) == (failure, True)
    await met(JOB_BELIEVED_S)
    await a.found(b)
    assert (await hosts(harness)).links == []


async def test_an_agent_that_comes_back_is_probed_anew(harness: Harness) -> None:
    a, b, _ = await three(harness)
    plan = plan_of(harness)
    await a.found(b)
    headers = {"Authorization": f"Bearer {JOIN_TOKEN}"}
    body = {
        **join_body("host-b", slots=1),
        "address": "10.1.0.9",
        "host": {"probe_port": 21000, "probe_key": "k"},
    }
    await harness.client.post("/api/v1/agents", json=body, headers=headers)
    order = (await a.orders(plan))[b.id]
    assert (order.address, order.port) == ("10.1.0.9", 21000)
