"""Many nodes report starts and ends of processes at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest_asyncio

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState
from tests.integration.service.conftest import Agent, Harness, entry, run_of
from tests.integration.service.test_life_of_a_job import message, progress

WIDE = 3
"""Nodes of each job."""
JOBS = 4


@dataclass(frozen=True)
class Part:
    """A run on one agent."""

    agent: Agent
    run: RunCommand


@pytest_asyncio.fixture
async def parts(harness: Harness) -> list[Part]:
    """Jobs of several nodes each, which are to start."""
    agents = [await harness.join(f"node-{number}", slots=1) for number in range(WIDE * JOBS)]
    for number in range(JOBS):
        await harness.submit(f"job-{number}", elastic={"min": WIDE, "max": WIDE})
    await harness.turn()
    found = [Part(agent, run_of(await agent.commands())) for agent in agents]
    return sorted(found, key=lambda one: (one.run.job_name, one.run.node_rank))


def begun(part: Part) -> list[dict[str, Any]]:
    said = [entry("ranks_started", part.run, how="zygote")]
    if part.run.node_rank == 0:
        said.append(entry("rank_message", part.run, **message("first_step", 1, samples=0)))
        said.append(entry("rank_message", part.run, **progress(1, 320)))
    return said


def over(part: Part, **how: Any) -> list[dict[str, Any]]:
    exits = [entry("rank_exited", part.run, rank=one.rank, **how) for one in part.run.ranks]
    return [*exits, entry("released", part.run)]


async def states(harness: Harness) -> Counter[str]:
    page = (await harness.client.get("/api/v1/jobs", params={"limit": 100})).json()
    return Counter(one["state"] for one in page["items"])


async def test_a_report_that_cannot_be_taken_in_spoils_no_other(harness: Harness, parts: list[Part]) -> None:
    """PostgreSQL has no such number, so that the statement for all of them fails."""
    await asyncio.gather(*(part.agent.report(*begun(part)) for part in parts))
    bad, *good = (part for part in parts if part.run.node_rank == 0)
    broken = bad.agent.client.post(
        f"/api/v1/agents/{bad.agent.joined.node_id}/reports",
        json={
            "instance": f"instance-{bad.agent.name}",
            "entries": [
                {**one, "sequence": 100 + number, "at": datetime.now(UTC).isoformat()}
                for number, one in enumerate(over(bad, exit_code=2**40))
            ],
        },
        headers={"Authorization": f"Bearer {bad.agent.joined.node_token}"},
    )
    answers = await asyncio.gather(
        broken, *(part.agent.report(*over(part, exit_code=1)) for part in good), return_exceptions=True
    )
    assert [one for one in answers[1:] if isinstance(one, BaseException)] == []
    assert await states(harness) == {JobState.RUNNING: 1, JobState.RECOVERING: JOBS - 1}
