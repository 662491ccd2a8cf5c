"""Hosts whose link is measured as slow, over the real API, Postgres and Redis, with scripted agents."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import JoinReply
from headway.contract.links import MAX_PROBE_BYTES, LinkProbe
from headway.contract.views.hosts import HostsView
from headway.contract.views.jobs import JobState
from service.usecases.nodes.links import ProbePlan
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import JOIN_TOKEN, Agent, Harness, join_body

HOSTS = ("host-a", "host-b", "host-c", "host-d")
USUAL = 1.25e8
"""Bytes per second of 1,000 Mbit/s."""
SAID = "host-b sends at 100 Mbit/s, its peers do at 1,000 with others"
STEPS = {"local_batch": 40, "accumulation": 1, "max_global_batch": None}
FIXED = {"min": 3, "max": 3}


class Links:
    """Agents of one slot each, whose measurements of one another are scripted."""

    def __init__(self, harness: Harness, cast: Cast) -> None:
        self.harness, self.cast = harness, cast
        self.plan = ProbePlan(harness.service.database, harness.service.clock.now)

    async def join(self, *names: str) -> None:
        for name in names:
            number = HOSTS.index(name) + 1
            body: dict[str, Any] = {**join_body(name, slots=1), "address": f"10.1.0.{number}"}
            body["host"] = {"probe_port": 20063, "probe_key": f"key-{number}"}
            response = await self.harness.client.post(
                "/api/v1/agents", json=body, headers={"Authorization": f"Bearer {JOIN_TOKEN}"}
            )
            joined = JoinReply.model_validate_json(response.content)
            self.cast.agents[name] = Agent(self.harness.client, self.harness.service.redis, name, joined)
            self.cast.told[name] = []

    async def slow(self) -> dict[str, str]:
        """The hosts that are marked, with what was measured."""
        return {one.name: one.slow_link for one in (await self.view()).hosts if one.slow_link}

    def due(self) -> set[str]:
        """The hosts that are to measure a rate now, or that send for it."""
        names = {one.joined.node_id: name for name, one in self.cast.agents.items()}
        orders = [(node, one) for node in names for one in self.plan.of(node)]
        measuring = [(node, one.peer) for node, one in orders if one.size_bytes == MAX_PROBE_BYTES]
        return {names[end] for ends in measuring for end in ends}

    async def measure_twice(self, **sends: float) -> None:
        """Report the same rates twice, as a mark needs."""
        for _ in range(2):
            await self.measure(**sends)

    async def measure(self, **sends: float) -> None:
        """Report every pair; each host sends at the usual rate or at its own. Then plan anew."""
        agents = self.cast.agents
        for receiver, sender in permutations(agents, 2):
            probe = LinkProbe(
                peer=agents[sender].joined.node_id,
                address="10.1.0.9",
                port=20063,
                connect_s=0.001,
                bytes_per_s=sends.get(sender.replace("-", "_"), USUAL),
            )
            await agents[receiver].report({"kind": "links_probed", "pairs": [probe.model_dump()]})
        await self.plan.refresh()

    async def view(self) -> HostsView:
        response = await self.harness.client.get("/api/v1/hosts")
        return HostsView.model_validate_json(response.content)

    async def hosts_of(self, job: str) -> set[str]:
        names = {one.joined.node_id: name for name, one in self.cast.agents.items()}
        return {names.get(node, node) for node in (await self.harness.job(job)).allocation}


@pytest_asyncio.fixture
async def links(harness: Harness) -> Links:
    return Links(harness, Cast(harness))


async def test_a_slow_host_is_named_and_gets_a_job_of_several_nodes_last(links: Links) -> None:
    await links.join(*HOSTS)
    await links.measure_twice(host_b=USUAL / 10)
    assert await links.slow() == {"host-b": SAID}
    (check,) = (await links.view()).checks
    assert (check.name, check.level, check.found) == ("bandwidth", "warn", f"{SAID}.")
    nodes = (await links.harness.client.get("/api/v1/nodes")).json()["items"]
    assert [one["name"] for one in nodes if SAID in one["message"]] == ["host-b"]
    await links.harness.submit("job", elastic=FIXED)
    await links.cast.turn()
    assert set(links.cast.started(1)) == {"host-a", "host-c", "host-d"}


async def test_a_host_that_is_well_again_is_used_as_any_other(links: Links) -> None:
    await links.join(*HOSTS)
    await links.measure_twice(host_b=USUAL / 10)
    await links.measure(host_b=USUAL * 0.4)
    assert list(await links.slow()) == ["host-b"]
    await links.measure()
    assert await links.slow() == {}
    assert [check.level for check in (await links.view()).checks] == ["ok"]


async def test_a_host_that_was_busy_during_one_measurement_is_never_marked(links: Links) -> None:
    await links.join(*HOSTS)
    for _ in range(3):
        await links.measure(host_b=USUAL / 10)
        assert "host-b" in links.due()
        await links.measure()
        assert await links.slow() == {}
        assert links.due() == set()


async def test_a_job_whose_steps_prove_it_moves_off_a_link_that_became_slow(links: Links) -> None:
    """It runs at 300 samples/s; behind the slow link at 30. Its measurements are kept apart, and a free host replaces it."""
    cast, harness = links.cast, links.harness
    await links.join("host-a", "host-b", "host-c")
    await links.measure()
    await cast.begin(3, elastic=FIXED, batch={"global": 120})
    await links.join("host-d")
    await links.measure()
    for _ in range(3):
        harness.clock.skipped += timedelta(seconds=30)
        await cast.trained((1, 0), 1, 120, 300.0, **STEPS, sync_s_sum=2.0)
    await links.measure(host_b=USUAL / 10)
    assert await links.slow() == {}, "one measurement is a doubt"
    assert len(links.due()) > 1, "its pairs are measured anew"
    await links.measure(host_b=USUAL / 10)
    assert await links.slow() == {"host-b": SAID}
    await cast.turn()
    assert cast.started(2) == {}, "a rate of a probe alone moves nobody"
    for _ in range(3):
        harness.clock.skipped += timedelta(seconds=30)
        await cast.trained((1, 0), 1, 120, 30.0, **STEPS, sync_s_sum=350.0)
    async with harness.service.database.engine.connect() as connection:
        rows = (
            await connection.execute(
                text(
                    "SELECT crossed, steps FROM measurements UNION ALL SELECT crossed, steps FROM slow_link_measurements"
                )
            )
        ).all()
    assert [tuple(row) for row in rows] == [("", 300), ("link", 300)]
    await cast.turn()
    (newcomer,) = [who for who in cast.homes if who[0] == 2]
    assert cast.homes[newcomer][0] == "host-d"
    explained = (await harness.client.get("/api/v1/jobs/job/explain")).json()
    assert f"to leave a slow link ({SAID})" in explained["message"]
    await cast.ready(newcomer)
    await cast.switch(2)
    (left,) = [who for who, home in cast.homes.items() if who[0] == 1 and home[0] == "host-b"]
    await cast.leave(left, 2)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 3, 1)
    assert await links.hosts_of("job") == {"host-a", "host-c", "host-d"}
    await cast.turn()
    assert cast.started(3) == {}, "it stays where it is"


async def test_a_job_that_waits_longer_has_the_links_of_its_hosts_measured_once(links: Links) -> None:
    cast, plan = links.cast, links.plan
    await links.join(*HOSTS)
    await links.measure()
    await cast.begin(3, elastic=FIXED, batch={"global": 120})
    await plan.refresh()
    assert links.due() == set()
    links.harness.clock.skipped += timedelta(seconds=30)
    await cast.trained((1, 0), 1, 120, 30.0, **STEPS, sync_s_sum=350.0, sync_times=9.0)
    await plan.refresh()
    assert len(links.due() & await links.hosts_of("job")) >= 2
    await links.measure()
    assert links.due() == set(), "measured since"
    assert await links.slow() == {}, "a wait of its ranks marks no host"
