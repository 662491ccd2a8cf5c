"""Interruption notices: the node is emptied in time, in place where that can be, and by a checkpoint where not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from service.usecases.ports.nodes import NodeRecord
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness
from tests.integration.service.test_losses import lose_node


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


def notice(cast: Cast, in_s: float = 120.0, **fields: Any) -> dict[str, Any]:
    at = cast.harness.clock.now() + timedelta(seconds=in_s)
    said = {"what": "terminate", "action": "terminate", "reclaim_at": at.isoformat(), **fields}
    return {"kind": "interruption_notice", **said}


def rebalance() -> dict[str, Any]:
    return {"kind": "interruption_notice", "what": "rebalance", "action": "rebalance"}


async def node(cast: Cast, name: str) -> NodeRecord:
    async with cast.harness.service.database.begin() as tx:
        return await tx.nodes.lock(name)


async def test_a_live_job_leaves_in_place(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(2)
    await cast.news("beta", notice(cast, action="stop"))
    taken = await node(cast, "beta")
    assert (taken.state, taken.wanted_state) == (NodeState.DRAINING, NodeState.DRAINING)
    assert "takes it away" in taken.message
    (event,) = await cast.events("interruption")
    assert (event["reason"], event["data"]["node"]) == (Reason.SPOT_RECLAIMED, "beta")
    assert "in 120 s" in event["message"]
    assert datetime.fromisoformat(event["data"]["reclaim_at"]) == taken.reclaim_at
    await cast.turn()
    assert set(cast.members(2).values()) == {0}
    await cast.switch(2)
    leaver = next(who for who, home in cast.homes.items() if home[0] == "beta")
    rank = leaver[1]
    await cast.leave(leaver, 2, rank=rank)
    job = await cast.job()
    assert (job.state, job.size, job.attempt, job.progress.lost_steps) == (JobState.RUNNING, 1, 1, 0)
    assert list(job.allocation) == ["alpha"]
    await cast.turn()
    assert (await node(cast, "beta")).state is NodeState.DRAINED
    await lose_node(cast, "beta")
    job = await cast.job()
    assert (job.state, job.attempt, job.infrastructure_failures) == (JobState.RUNNING, 1, 0)


async def test_a_job_with_nowhere_to_go_saves_and_waits(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    await cast.news("alpha", notice(cast))
    await cast.turn()
    assert {mode for *_, mode in cast.stops()} == {"checkpoint"}
    saved = {"uri": "file:///c", "samples": 640, "size_bytes": 1, "save_s": 0.1, "total_s": 0.1}
    await cast.say((1, 0), "checkpointed", 1, **saved)
    await cast.stopped(1)
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures) == (
        JobState.PENDING,
        Reason.SPOT_RECLAIMED,
        0,
    )
    await cast.turn()
    assert (await node(cast, "alpha")).state is NodeState.DRAINED
    await cast.join(beta=1)
    await cast.turn()
    assert list(cast.started(2)) == ["beta"]


async def test_an_agent_that_stops_its_ranks_by_itself_is_no_failure(cast: Cast) -> None:
    """The notice was reported late, with the ends of the ranks: the service had been away."""
    await cast.join(alpha=1)
    await cast.begin(1)
    end = cast.exit((1, 0), exit_code=143, stopped_by_agent=True)
    await cast.news("alpha", notice(cast, in_s=5), end, cast.entry(1, "released"))
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures, job.user_errors) == (
        JobState.RECOVERING,
        Reason.SPOT_RECLAIMED,
        0,
        0,
    )
    await cast.turn()
    assert cast.started(2) == {}, "the node is going away"
    await cast.join(beta=1)
    await cast.turn()
    assert list(cast.started(2)) == ["beta"]


async def test_said_again_nothing_happens_again(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    said = notice(cast)
    await cast.news("alpha", said)
    await cast.news("alpha", said, said)
    assert len(await cast.events("interruption")) == 1
    await cast.news("alpha", notice(cast, in_s=300))
    assert len(await cast.events("interruption")) == 2, "put off is news"


async def test_a_recommendation_keeps_jobs_and_takes_no_new_ones(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1, elastic={"min": 1, "max": 1})
    await cast.news("alpha", rebalance())
    taken = await node(cast, "alpha")
    assert (taken.state, taken.wanted_state, taken.reclaim_at) == (
        NodeState.CORDONED,
        NodeState.CORDONED,
        None,
    )
    await cast.harness.submit("second")
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING
    assert (await cast.job("second")).state is JobState.PENDING
    assert await cast.events("interruption") == []


@pytest.mark.parametrize("before", ["cordon", "drain"])
async def test_a_recommendation_does_not_undo_what_an_operator_asked_for(cast: Cast, before: str) -> None:
    await cast.join(alpha=1)
    await cast.harness.post(f"nodes/alpha/{before}")
    asked = await node(cast, "alpha")
    await cast.news("alpha", rebalance())
    now = await node(cast, "alpha")
    assert (now.state, now.wanted_state) == (asked.state, asked.wanted_state)


async def test_a_recommendation_and_then_the_notice(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.news("alpha", rebalance(), notice(cast))
    assert (await node(cast, "alpha")).state is NodeState.DRAINING
    await cast.news("alpha", rebalance())
    assert (await node(cast, "alpha")).wanted_state is NodeState.DRAINING


async def test_a_notice_about_the_past(cast: Cast) -> None:
    """The host's clock is ahead, or the report was late."""
    await cast.join(alpha=1)
    await cast.begin(1)
    await cast.news("alpha", notice(cast, in_s=-3600))
    assert (await node(cast, "alpha")).state is NodeState.DRAINING
    (event,) = await cast.events("interruption")
    assert "takes node alpha away now" in event["message"]


async def test_a_host_that_is_back_takes_jobs(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.news("alpha", notice(cast, in_s=-1))
    await cast.turn()
    await lose_node(cast, "alpha")
    assert (await node(cast, "alpha")).state is NodeState.LOST
    await cast.join(alpha=1)
    await cast.news("alpha")
    back = await node(cast, "alpha")
    assert (back.state, back.reclaim_at) == (NodeState.READY, None)


async def test_an_operator_knows_better(cast: Cast) -> None:
    """The provider has thought better of it, and says so to nobody but people."""
    await cast.join(alpha=1)
    await cast.news("alpha", notice(cast))
    await cast.turn()
    await cast.harness.post("nodes/alpha/uncordon")
    back = await node(cast, "alpha")
    assert (back.state, back.reclaim_at) == (NodeState.READY, None)
    await cast.begin(1)


@pytest.mark.parametrize(
    "fields",
    [
        {"what": "earthquake"},
        {"action": "x" * 65},
        {"reclaim_at": "soon"},
    ],
)
async def test_nonsense_is_refused(cast: Cast, fields: dict[str, str]) -> None:
    await cast.join(alpha=1)
    agent = cast.agents["alpha"]
    entry = {**notice(cast), "sequence": 1, "at": cast.harness.clock.now().isoformat(), **fields}
    response = await agent.client.post(
        f"/api/v1/agents/{agent.joined.node_id}/reports",
        json={"instance": "instance-alpha", "entries": [entry]},
        headers={"Authorization": f"Bearer {agent.joined.node_token}"},
    )
    assert response.status_code == 422
    assert (await node(cast, "alpha")).state is NodeState.READY
