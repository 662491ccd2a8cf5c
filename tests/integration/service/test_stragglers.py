"""Ranks that stay slower than the others of their job: an event, a mark at the slot, and a move where a slot is free."""

from __future__ import annotations

import pytest_asyncio
from sqlalchemy import text

from headway.contract.views.jobs import JobState, Page
from headway.contract.views.nodes import NodeView
from service.domain.nodes.stragglers import HALF_LIFE_S
from tests.integration.service.cast import Born, Cast
from tests.integration.service.conftest import Harness

FIXED = {"min": 3, "max": 3}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def marked(cast: Cast) -> dict[tuple[str, int], str]:
    """Descriptions of the marked slots, by node and slot."""
    answer = await cast.harness.client.get("/api/v1/nodes")
    nodes = Page[NodeView].model_validate_json(answer.content).items
    return {(node.name, slot.index): slot.slow for node in nodes for slot in node.slots if slot.slow}


async def slow_rank(cast: Cast, *times: float, generation: int = 1) -> None:
    await cast.trained((1, 0), generation, 32, 100.0, straggler_times=list(times))


async def test_a_straggler_is_marked_and_its_job_moves_in_place(cast: Cast) -> None:
    await cast.join(alpha=2, beta=1, gamma=1)
    await cast.begin(3, elastic=FIXED)
    slow: Born = (1, 2)
    home = cast.homes[slow]
    (spare,) = {("alpha", 0), ("alpha", 1), ("beta", 0), ("gamma", 0)} - set(cast.homes.values())
    await cast.turn()
    assert cast.started(2) == {}
    await slow_rank(cast, 0.0, 0.0, 3.1)
    (event,) = await cast.events("straggler")
    assert event["data"] == {"node": home[0], "slot": home[1], "times": 3.1}
    assert list(await marked(cast)) == [home]
    await slow_rank(cast, 0.0, 0.0, 3.0)
    assert len(await cast.events("straggler")) == 1, "the mark is renewed without another event"
    await cast.turn()
    (newcomer,) = [who for who in cast.homes if who[0] == 2]
    assert cast.homes[newcomer] == spare
    await cast.ready(newcomer)
    await cast.switch(2)
    await cast.leave(slow, 2)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 3, 1)
    assert home[1] not in job.allocation.get(home[0], [])
    await cast.turn()
    assert cast.started(3) == {}, "it stays where it is"
    assert list(await marked(cast)) == [home], "also without a job"
    async with cast.harness.service.database.engine.begin() as connection:
        earlier = "marked_at - make_interval(secs => CAST(:by AS float8))"
        skipped = text(f"UPDATE stragglers SET marked_at = {earlier}")
        await connection.execute(skipped, {"by": 10 * HALF_LIFE_S})
    assert await marked(cast) == {}, "a mark fades"


async def test_a_straggler_stays_where_no_slot_is_free(cast: Cast) -> None:
    await cast.join(alpha=3)
    await cast.begin(3, elastic=FIXED)
    await slow_rank(cast, 0.0, 0.0, 3.1)
    await cast.turn()
    assert cast.started(2) == {}
    assert (await cast.job()).size == 3
    await slow_rank(cast, 0.0, 0.0, 0.0)
    assert await marked(cast) == {}, "the rank is as fast as the others again"


async def test_jobs_that_wait_get_the_free_slots(cast: Cast) -> None:
    await cast.join(alpha=3, beta=1)
    await cast.begin(3, elastic=FIXED)
    await slow_rank(cast, 0.0, 0.0, 3.1)
    await cast.harness.submit("second", elastic={"min": 1, "max": 1})
    await cast.turn()
    assert cast.started(2) == {}
    assert (await cast.job("second")).state is JobState.STARTING
