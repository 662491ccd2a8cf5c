"""A compressed month and a half: of whatever there is, at the end of each period there is as much as before it."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import RunCommand, StopCommand
from headway.contract.views.jobs import JobState
from service.adapters.postgres.tables.core import metadata
from service.loops.scheduler import Intervals, Scheduler
from service.usecases.money.accrue import accrue
from service.usecases.nodes.expire import lose_node
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings

STEP = timedelta(days=4)
KEEP_DAYS = 6
PERIODS = 4
STEPS_A_PERIOD = 3
MONEY = {"leases", "charges", "budget_notices"}
"""Kept for more than a year."""
METRICS = 80
"""Values of the long job in a step."""


@dataclass
class Cluster:
    """The service, and agents that obey it."""

    harness: Harness
    scheduler: Scheduler
    agents: dict[str, Agent] = field(default_factory=dict)
    running: dict[str, dict[str, RunCommand]] = field(default_factory=dict)
    """Runs by the name of their job and of their node."""
    seen: Counter[str] = field(default_factory=Counter)

    async def settle(self) -> None:
        """Rounds and deliveries until nobody is told anything any more."""
        told = True
        while told:
            await self.scheduler.round()
            await self.scheduler.deliver()
            told = False
            for name, agent in self.agents.items():
                for command in await agent.commands():
                    told = True
                    await self._obey(name, agent, command)
                await agent.redis.delete(agent.joined.stream)  # an agent removes what it has handled

    async def _obey(self, name: str, agent: Agent, command: Any) -> None:
        if isinstance(command, RunCommand):
            self.running.setdefault(command.job_name, {})[name] = command
            step = await self.says(command.job_name, "first_step", samples=32)
            await agent.report(entry("ranks_started", command, how="zygote"), step)
        elif isinstance(command, StopCommand):
            for runs in self.running.values():
                run = runs.get(name)
                if run is not None and run.job_id == command.job_id:
                    await self.end(name, run, exit_code=143, stopped_by_agent=True)
                    del runs[name]

    async def end(self, node: str, run: RunCommand, **how: Any) -> None:
        exits = [entry("rank_exited", run, rank=one.rank, **how) for one in run.ranks]
        await self.agents[node].report(*exits, entry("released", run))

    async def finish(self, job: str) -> None:
        for node, run in self.running.pop(job).items():
            await self.end(node, run, exit_code=0, completed=True)
        await self.settle()
        assert (await self.harness.job(job)).state is JobState.SUCCEEDED

    async def says(self, job: str, kind: str, *, ago_s: float = 0.0, **fields: Any) -> dict[str, Any]:
        ((_, run),) = self.running[job].items()
        at_s = self.harness.clock.now().timestamp() - ago_s
        message = {"type": kind, "rank": 0, "generation": run.generation, "at_s": at_s, **fields}
        return entry("rank_message", run, message=message)

    async def trains(self, job: str, step: int, values: int) -> None:
        """Progress, values and a piece of output of a running job."""
        ((node, run),) = self.running[job].items()
        steps = {"steps": 100, "step_s_sum": 10.0, "step_s_squares": 1.0, "global_batch": 32}
        batch = {"local_batch": 32, "accumulation": 1, "total_samples": None}
        news = [await self.says(job, "progress", epoch=0, samples=3200 * (step + 1), **steps, **batch)]
        for number in range(values):
            ago_s = STEP.total_seconds() / METRICS * (values - number)
            head = {"epoch": 0, "samples": 3200 * step + number}
            news.append(await self.says(job, "metrics", ago_s=ago_s, **head, values={"loss": 1.0}))
        await self.agents[node].report(*news)
        agent = self.agents[node]
        response = await self.harness.client.post(
            f"/api/v1/agents/{agent.joined.node_id}/logs/{run.job_id}/{run.generation}/0?offset={1000 * step}",
            content=b"x" * 1000,
            headers={"Authorization": f"Bearer {agent.joined.node_token}"},
        )
        assert response.status_code == 204, response.text
        await self.harness.service.storage.put(f"checkpoints/{run.job_id}/{step:08}/manifest.json", b"{}")
        if step:  # the library keeps the last ones
            await self.harness.service.storage.delete(f"checkpoints/{run.job_id}/{step - 1:08}/manifest.json")


@pytest_asyncio.fixture
async def cluster(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = make_settings(
        database_url,
        redis_url,
        f"file://{tmp_path}/storage",
        usd_per_slot_h={"cpu": 1.0},
        keep_days=KEEP_DAYS,
    )
    async with harness_of(settings, api_skips=True) as harness:
        yield Cluster(harness, replace(harness.scheduler, intervals=Intervals(keep_days=KEEP_DAYS)))


def folder_of(step: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        content = f"print({step})".encode()
        info = tarfile.TarInfo("train.py")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def short_job(cluster: Cluster, step: int) -> None:
    """Run a short job with a folder of its own, on a node that exists for this step only."""
    harness, guest = cluster.harness, f"guest-{step}"
    cluster.agents[guest] = await harness.join(guest, slots=1, kind="a100")
    uploaded = (await harness.client.post("/api/v1/bundles", content=folder_of(step))).json()
    spec = {"bundle": uploaded["digest"], "run": "python train.py", "resources": {"devices": ["a100"]}}
    await harness.submit(f"short-{step}", **spec)
    await cluster.settle()
    await cluster.trains(f"short-{step}", 0, values=10)
    await cluster.finish(f"short-{step}")
    # One more that is never started: its command waits for a node that never takes it up.
    await harness.submit(f"late-{step}", **spec)
    await cluster.scheduler.round()
    agent = cluster.agents.pop(guest)
    async with harness.service.database.begin() as tx:
        node = await tx.nodes.lock(agent.joined.node_id)
        await lose_node(tx, node, harness.service.launch, harness.clock.now())
    await harness.post(f"jobs/late-{step}/cancel")
    await cluster.settle()


async def resized_job(cluster: Cluster, step: int) -> None:
    for size in (1, 2):
        await cluster.harness.post("jobs/for-ever/resize", {"slots": size})
        await cluster.settle()
        assert (await cluster.harness.job("for-ever")).size == size
    await cluster.trains("for-ever", step, METRICS)


async def one_step(cluster: Cluster, step: int) -> None:
    harness = cluster.harness
    await resized_job(cluster, step)
    await short_job(cluster, step)
    asked = await harness.post("simulations", {"changes": [{"change": "policy", "policy": "fifo"}]})
    assert asked.status_code == 202, asked.text
    await harness.post(f"simulations/{asked.json()['id']}/cancel")
    async with harness.service.database.begin() as tx:
        await tx.nodes.beat(f"api-{step}", harness.clock.now(), 6.0)
        await tx.spending.add_notice(f"job/{step}", harness.clock.now(), 0.8, harness.clock.now())
        home = cluster.agents["home"].joined.node_id
    async with harness.service.database.engine.begin() as connection:
        query = (
            "INSERT INTO quarantines (node_id, slot, grade, cause, message, since, released_at)"
            " VALUES (:node, 0, 'suspicious', 'slow', '', :at, :at)"
        )
        await connection.execute(text(query), {"node": home, "at": harness.clock.now()})
    async with harness.service.database.begin() as tx:
        await accrue(tx, {"cpu": 1.0, "a100": 2.0}, harness.clock.now())
    await cluster.scheduler.retain()
    await cluster.scheduler.sweep()


async def sizes(cluster: Cluster) -> dict[str, int]:
    """Rows of each table, objects by what they are, folders, and keys of Redis."""
    found: Counter[str] = Counter()
    async with cluster.harness.service.database.engine.connect() as connection:
        for table in metadata.tables:
            found[table] = (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
    storage = cluster.harness.service.storage
    async for stored in storage.entries(""):
        found[f"{stored.key.partition('/')[0]} in storage"] += 1
    for root in ("logs/", "checkpoints/"):
        found[f"folders of {root}"] = len([name async for name in storage.folders(root)])
    found["keys of redis"] = await cluster.harness.service.redis.dbsize()
    return dict(found)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine is no failure
async def test_nothing_grows_for_ever(cluster: Cluster) -> None:
    cluster.agents["home"] = await cluster.harness.join("home", slots=2)
    await cluster.harness.submit("for-ever", elastic={"min": 1, "max": 2}, resources={"devices": ["cpu"]})
    await cluster.settle()
    periods: list[dict[str, int]] = []
    for step in range(STEPS_A_PERIOD * PERIODS):
        cluster.harness.clock.skipped += STEP
        await cluster.agents["home"].report()
        await one_step(cluster, step)
        if step % STEPS_A_PERIOD == STEPS_A_PERIOD - 1:
            periods.append(await sizes(cluster))
    made = {name for name, size in periods[0].items() if size}
    assert {"jobs", "events", "metrics", "rounds", "simulations", "bundles", "nodes", "commands"} <= made
    assert {"allocations", "slot_grants", "past_allocations", "quarantines", *MONEY} <= set(periods[-1])
    for name, last in periods[-1].items():
        before = [period.get(name, 0) for period in periods[-3:-1]]
        if name in {*MONEY, "audit"}:  # kept for a year: no faster than what is done
            assert last - before[1] <= before[1] - before[0] + STEPS_A_PERIOD, f"{name}: {before} {last}"
        else:
            assert last <= 1.1 * max(before) + 2, f"{name} goes on growing: {before} {last}"
    assert (await cluster.harness.job("for-ever")).state is JobState.RUNNING
    cluster.harness.clock.skipped += timedelta(days=401)
    await cluster.scheduler.retain()
    after = await sizes(cluster)
    assert after["budget_notices"] == 0
    assert after["charges"] < periods[-1]["charges"] / 10
