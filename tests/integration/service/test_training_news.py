"""Reports of training of many nodes, ingested together, have the effect of each alone."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import ReportRequest, RunCommand
from service.usecases.nodes.join import digest_token
from service.usecases.reports.heartbeat import MOST_REPORTS
from service.usecases.reports.ingest import ingest
from service.usecases.reports.training import RoutineReport, ingest_together, routine_report_of
from tests.integration.service.conftest import Agent, Harness, entry, run_of
from tests.integration.service.counting import statements
from tests.integration.service.test_life_of_a_job import message, progress

NODES = 6
PER_GROUP = 7
"""Nodes, jobs, allocations, progress, measurements, acknowledgements, and the nodes again."""


@pytest_asyncio.fixture
async def fleet(harness: Harness) -> list[tuple[Agent, RunCommand]]:
    """Nodes with one job each, whose ranks have started."""
    agents = [await harness.join(f"node-{number}", slots=1) for number in range(NODES)]
    for number in range(NODES):
        await harness.submit(f"job-{number}")
    await harness.turn()
    runs = [(agent, run_of(await agent.commands())) for agent in agents]
    for agent, run in runs:
        await agent.report(entry("ranks_started", run, how="zygote"))
    return runs


def holding(run: RunCommand) -> list[dict[str, Any]]:
    return [{"job_id": run.job_id, "generation": run.generation}]


async def samples(harness: Harness) -> dict[str, int]:
    page = (await harness.client.get("/api/v1/jobs", params={"limit": 100})).json()
    return {one["name"]: one["progress"]["samples"] for one in page["items"]}


def say(agent: Agent, run: RunCommand, count: int) -> asyncio.Task[Any]:
    """A report of progress, on its way."""
    said = entry("rank_message", run, **progress(run.generation, count))
    return asyncio.create_task(agent.report(said, holding=holding(run)))


async def test_news_of_many_nodes_cost_as_many_statements_as_those_of_one(
    harness: Harness, fleet: list[tuple[Agent, RunCommand]]
) -> None:
    for agent, run in fleet:
        agent.unacknowledged = [run.command_id]
    with statements(harness.service.database) as sent:
        await asyncio.gather(*(say(agent, run, 320) for agent, run in fleet))
    # The first one is written at once, and all others meanwhile gather.
    assert len(sent) <= 2 * PER_GROUP, sent
    assert await samples(harness) == {f"job-{number}": 320 for number in range(NODES)}
    assert MOST_REPORTS > NODES


async def test_acknowledgements_alone_are_taken_in_together(
    harness: Harness, fleet: list[tuple[Agent, RunCommand]]
) -> None:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("UPDATE commands SET acknowledged_at = NULL"))
    for agent, run in fleet:
        agent.unacknowledged = [run.command_id]
    with statements(harness.service.database) as sent:
        await asyncio.gather(*(agent.report(holding=holding(run)) for agent, run in fleet))
    assert len(sent) <= 2 * 3, sent
    async with harness.service.database.engine.connect() as connection:
        left = await connection.execute(text("SELECT count(*) FROM commands WHERE acknowledged_at IS NULL"))
        assert left.scalar_one() == 0


async def test_news_of_a_job_that_somebody_works_on_hold_up_no_others(
    harness: Harness, fleet: list[tuple[Agent, RunCommand]]
) -> None:
    busy, *others = fleet
    async with harness.service.database.begin() as tx:
        await tx.jobs.lock(busy[1].job_name)
        waits = say(*busy, 640)
        await asyncio.gather(*(say(agent, run, 640) for agent, run in others))
        assert not waits.done()
        assert (await samples(harness))[busy[1].job_name] == 0
    await waits
    assert set((await samples(harness)).values()) == {640}


async def test_of_a_group_only_those_with_the_right_to_speak_are_believed(
    harness: Harness, fleet: list[tuple[Agent, RunCommand]]
) -> None:
    (alpha, of_alpha), (beta, of_beta), *_ = fleet
    stale = entry("rank_message", of_alpha, **progress(7, 999))
    of_another = entry("rank_message", of_beta, **{**progress(1, 999), "rank": 5})
    nonsense = entry("rank_message", of_beta, **message("progress", 1, steps="many"))
    await asyncio.gather(alpha.report(stale), beta.report(of_another), say(*fleet[2], 320))
    await beta.report(nonsense, entry("rank_message", of_beta, **progress(1, 160)))
    told = await samples(harness)
    assert [told[run.job_name] for _, run in fleet[:3]] == [0, 160, 320]
    events = (await harness.client.get(f"/api/v1/jobs/{of_beta.job_name}/events")).json()["items"]
    assert [one["kind"] for one in events].count("message_refused") == 1


def drawn(rng: random.Random, run: RunCommand, sequence: int) -> dict[str, Any]:
    """Something that a rank may say of training."""
    said = (
        progress(1, rng.randrange(10_000), steps=rng.randrange(5), step_s=rng.choice((0.0, 0.25, 1e5)))
        if rng.random() < 0.7
        else message("metrics", 1, epoch=0, samples=sequence, values={rng.choice("ab"): rng.random()})
    )
    if rng.random() < 0.2:
        said["message"]["global_batch"] = 64
    return {
        **entry("rank_message", run, **said),
        "sequence": sequence,
        "at": datetime.now(UTC).isoformat(),
    }


async def outcome(harness: Harness, runs: list[tuple[Agent, RunCommand]]) -> list[Any]:
    """Return the rows about training, without the ids of jobs."""
    queries = (
        "SELECT progress FROM jobs WHERE id = :job",
        "SELECT generation, global_batch, steps, step_s_sum, step_s_squares, local_batch FROM measurements"
        " WHERE job_id = :job ORDER BY 2",
        "SELECT name, value, samples FROM metrics WHERE job_id = :job ORDER BY id",
        "SELECT count(*) FROM events WHERE job_id = :job",
    )
    async with harness.service.database.engine.connect() as connection:
        return [
            [tuple(row) for row in await connection.execute(text(query), {"job": run.job_id})]
            for _, run in runs
            for query in queries
        ]


async def test_together_comes_to_the_same_as_one_by_one(
    harness: Harness, fleet: list[tuple[Agent, RunCommand]]
) -> None:
    rng = random.Random(5)
    half = NODES // 2
    alone, together = fleet[:half], fleet[half:]
    database, now = harness.service.database, harness.clock.now()
    for turn in range(12):
        news: list[RoutineReport] = []
        for (one, run), (other, same) in zip(alone, together, strict=True):
            seed, count = rng.random(), rng.randrange(1, 6)
            first = 1_000_000 + 10 * turn - rng.choice((0, 0, 13))  # some are sent again
            reports = []
            for agent, of_agent in ((one, run), (other, same)):
                draws = random.Random(seed)
                entries = [drawn(draws, of_agent, first + number) for number in range(count)]
                reports.append(
                    ReportRequest.model_validate({"instance": f"instance-{agent.name}", "entries": entries})
                )
            async with database.begin() as tx:
                await ingest(
                    tx,
                    one.joined.node_id,
                    reports[0],
                    launch=harness.service.launch,
                    lease_s=60.0,
                    now=now,
                )
            quick = routine_report_of(reports[1], other.joined.node_id, digest_token(other.joined.node_token))
            assert quick is not None
            news.append(quick)
        async with database.begin() as tx:
            taken = (await ingest_together(tx, news, harness.service.launch, now)).nodes
        assert taken == {other.joined.node_id for other, _ in together}
    one_by_one = await outcome(harness, alone)
    assert all(one_by_one), "there was something of everything"
    assert one_by_one == await outcome(harness, together)
