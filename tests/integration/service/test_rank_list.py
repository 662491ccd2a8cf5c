"""The processes of a job as the API lists them, with the process ids that agents report."""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from headway.contract.views.jobs import JobState, Page
from headway.contract.views.ranks import RankPart, RankView
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

TRAINS, JOINS, LEAVES = RankPart.TRAINS, RankPart.JOINS, RankPart.LEAVES


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def listed(cast: Cast) -> list[tuple[Any, ...]]:
    answer = await cast.harness.client.get("/api/v1/jobs/job/ranks")
    assert answer.status_code == 200, answer.text
    ranks = Page[RankView].model_validate_json(answer.content).items
    return [(one.rank, one.member, one.node, one.pid, one.part) for one in ranks]


async def started(cast: Cast, node: str, generation: int, pids: dict[int, int]) -> None:
    await cast.news(node, cast.entry(generation, "ranks_started", how="zygote", pids=pids))


async def test_ranks_keep_their_process_ids_through_growth_and_loss(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(1, pids={0: 4001})
    home = cast.homes[1, 0][0]
    assert await listed(cast) == [(0, "1.0", home, 4001, TRAINS)]
    await cast.resize(2)
    (other,) = cast.started(2)
    await started(cast, other, 2, {1: 4002})
    joining = [(0, "1.0", home, 4001, TRAINS), (1, "2.1", other, 4002, JOINS)]
    assert await listed(cast) == joining
    await started(cast, other, 2, {1: 4002})
    assert await listed(cast) == joining, "a repeated report changes nothing"
    await cast.ready((2, 1))
    await cast.switch(2)
    assert await listed(cast) == [(0, "1.0", home, 4001, TRAINS), (1, "2.1", other, 4002, TRAINS)]
    await cast.die((1, 0))
    await cast.switch(3)
    assert await listed(cast) == [(0, "2.1", other, 4002, TRAINS)], "its rank is another now"


async def test_a_rank_that_is_ordered_to_leave_is_listed_until_it_ends(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2, pids={0: 4001, 1: 4002})
    await cast.resize(1)
    assert [(one[1], one[-1]) for one in await listed(cast)] == [("1.0", TRAINS), ("1.1", LEAVES)]
    await cast.switch(2)
    await cast.leave((1, 1), 2)
    assert await listed(cast) == [(0, "1.0", "alpha", 4001, TRAINS)]


async def test_an_agent_that_reports_no_process_ids_leaves_them_unknown(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    assert await listed(cast) == [(0, "1.0", "alpha", None, TRAINS)]


async def test_a_job_without_processes_lists_no_ranks(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, pids={0: 4001})
    await cast.harness.post("jobs/job/cancel", {"force": True})
    await cast.deliver()
    await cast.stopped(1)
    assert (await cast.job()).state is JobState.CANCELLED
    assert await listed(cast) == []
