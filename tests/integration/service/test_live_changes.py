"""Growing, shrinking and moving in place, over the real API, Postgres and Redis, with scripted agents."""

from __future__ import annotations

from datetime import timedelta

import pytest_asyncio

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.first_step import STEP_WITHIN_S
from service.domain.life.changes import READY_WITHIN_S, SWITCHED_WITHIN_S
from service.usecases.nodes.expire import HEARD_WITHIN_S
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def grown(cast: Cast) -> None:
    """A job on alpha's two slots: (1, 0) and the newcomer (2, 0 + 1)."""
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    await cast.switch(2)


async def test_grow(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    first = await cast.begin(1)
    assert (first.live, first.joins, first.hosts_store, first.store_port) == (
        True,
        False,
        True,
        first.master_port,
    )
    await cast.resize(2)
    job = await cast.job()
    assert (job.state, job.generation, job.size) == (JobState.RESIZING, 1, 1)
    ((node, run),) = cast.started(2).items()
    assert (run.live, run.joins, run.hosts_store, run.world_size) == (True, True, True, 2)
    assert [(one.rank, one.local_rank) for one in run.ranks] == [(1, 0)]
    assert (run.node_rank, run.node_count) == (1, 2)
    assert (run.master_addr, run.master_port) == (first.master_addr, first.store_port)
    assert 20000 <= run.store_port <= 20063
    await cast.say((1, 0), "metrics", 1, epoch=0, samples=320, values={"loss": 1.0})
    assert (await cast.job()).progress.metrics == {"loss": 1.0}, "training goes on meanwhile"
    assert cast.orders(2) == {}
    await cast.ready((2, 1))
    assert set(cast.orders(2)) == {"alpha", "beta"}
    assert cast.members(2) == {(1, 0): 0, (2, 1): 1}
    order = cast.orders(2)[node]
    assert (order.lost, order.store_addr, order.store_port) == (False, first.master_addr, first.store_port)
    await cast.switch(2)
    job = await cast.job()
    assert (job.state, job.generation, job.size) == (JobState.RUNNING, 2, 2)
    assert (job.progress.pause_s, job.progress.lost_steps) == (0.04, 0)
    (event,) = await cast.events("switch")
    assert event["message"] == "grew from 1 to 2 slots in place: paused 0.04 s"
    assert event["data"]["how"] == "live"
    assert (event["data"]["from"], event["data"]["to"]) == (1, 2)
    assert (event["data"]["pause_s"], event["data"]["ready_s"], event["data"]["lost_steps"]) == (0.04, 0.5, 0)
    assert cast.stops() == set()


async def test_shrink_needs_no_preparation_and_frees_the_slot_when_the_leaver_is_gone(cast: Cast) -> None:
    await grown(cast)
    await cast.resize(1)
    assert cast.members(3) == {(1, 0): 0}
    assert cast.started(3) == {}
    assert (await cast.job()).state is JobState.RESIZING
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.generation, job.size) == (JobState.RUNNING, 3, 1)
    assert await cast.held() == 2, "the leaver still runs"
    await cast.leave((2, 1), 3)
    assert await cast.held() == 1
    assert (await cast.job()).state is JobState.RUNNING
    assert (await cast.events("switch"))[-1]["message"].startswith("shrank from 2 to 1 slot in place")
    await cast.resize(2)
    assert list(cast.started(4)) == ["alpha"], "the freed slot is used again"


async def test_rank_0_may_leave(cast: Cast) -> None:
    """The node of the first rank is drained: the newcomer takes over, and tells how far training is."""
    await cast.join(alpha=1, beta=1)
    await cast.begin(2)
    await cast.harness.post("jobs/job/resize", {"slots": 1})
    home = cast.homes[1, 0][0]
    await cast.harness.post(f"nodes/{home}/drain")
    await cast.turn()
    assert cast.members(2) == {(1, 1): 0}
    stay = cast.homes[1, 1][0]
    order = cast.orders(2)[home]
    assert order.store_port == cast.started(1)[stay].store_port, "its own node's store"
    await cast.switch(2)
    await cast.leave((1, 0), 2)
    nodes = (await cast.harness.client.get("/api/v1/nodes")).json()["items"]
    await cast.turn()
    assert (await cast.job()).size == 1
    assert {one["name"] for one in nodes} == {"alpha", "beta"}


async def test_move_to_another_node_goes_through_a_checkpoint(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    await cast.join(beta=1)
    await cast.harness.post("nodes/alpha/drain")
    await cast.turn()
    run = cast.started(2)["beta"]
    assert (run.joins, run.master_port, run.node_rank) == (True, run.store_port, 0)
    await cast.ready((2, 0))
    assert cast.members(2) == {(2, 0): 0}
    assert set(cast.orders(2)) == {"alpha", "beta"}
    saved = {"uri": "file:///c", "samples": 640, "size_bytes": 1, "save_s": 0.1, "total_s": 0.1}
    await cast.say((1, 0), "checkpointed", 1, **saved)
    await cast.leave((1, 0), 2)
    job = await cast.job()
    assert (job.state, job.generation) == (JobState.RESIZING, 1), "a leaver's exit is not the end of training"
    await cast.say((2, 0), "restored", 2, samples=640, from_generation=1)
    await cast.switch(2)
    job = await cast.job()
    assert (job.state, job.generation, job.progress.checkpoint_samples) == (JobState.RUNNING, 2, 640)
    assert (job.progress.lost_samples, job.progress.lost_steps) == (0, 0)
    (event,) = await cast.events("switch")
    assert event["data"]["how"] == "checkpoint"
    await cast.turn()
    nodes = (await cast.harness.client.get("/api/v1/nodes")).json()["items"]
    assert {one["name"]: one["state"] for one in nodes} == {"alpha": "DRAINED", "beta": "READY"}


async def test_some_leave_while_others_join(cast: Cast) -> None:
    """Two of alpha's slots are to be left for two of beta's, one of gamma stays."""
    await cast.join(alpha=2, gamma=1)
    await cast.begin(3)
    await cast.join(beta=2)
    await cast.harness.post("jobs/job/resize", {"slots": 3})
    await cast.harness.post("nodes/alpha/drain")
    await cast.turn()
    gamma = next(who for who, home in cast.homes.items() if home[0] == "gamma")
    assert [one.rank for one in cast.started(2)["beta"].ranks] == [1, 2]
    await cast.ready((2, 1))
    assert cast.orders(2) == {}, "one of two newcomers is not ready"
    await cast.ready((2, 2))
    assert cast.members(2) == {gamma: 0, (2, 1): 1, (2, 2): 2}
    await cast.switch(2)
    for who in ((1, 0), (1, 1), (1, 2)):
        if who != gamma:
            await cast.leave(who, 2)
    job = await cast.job()
    assert (job.state, job.size) == (JobState.RUNNING, 3)
    assert job.allocation == {"beta": [0, 1], "gamma": [0]}
    assert await cast.held() == 3


async def test_a_newcomer_that_fails_is_given_up_and_not_tried_again_at_once(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    tail = ["ModuleNotFoundError: no module named x"]
    await cast.die((2, 1), exit_code=1, log_tail=tail)
    job = await cast.job()
    assert (job.state, job.generation, job.user_errors) == (JobState.RUNNING, 1, 0)
    assert cast.stops() == {("alpha", 2, 2, "kill")}
    (event,) = await cast.events("abandon")
    assert "no module named x" in event["message"]
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING
    assert cast.started(3) == {}
    explained = (await cast.harness.client.get("/api/v1/jobs/job/explain")).json()
    assert "did not come up" in explained["message"]
    cast.harness.clock.skipped += timedelta(seconds=11)
    await cast.turn()
    assert list(cast.started(3)) == ["alpha"], "numbers are not used twice"
    await cast.say((2, 1), "ready", 2, ready_s=0.1)
    assert cast.orders(3) == {}, "a newcomer that was given up is believed"
    await cast.ready((3, 1))
    await cast.switch(3)
    assert (await cast.job()).size == 2


async def test_newcomers_that_cannot_be_started(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.news("alpha", cast.entry(2, "start_failed", message="bundle missing", retryable=True))
    await cast.news("alpha", cast.entry(2, "released"))
    job = await cast.job()
    assert (job.state, await cast.held()) == (JobState.RUNNING, 1)
    assert "bundle missing" in job.message


async def test_waits_get_longer_also_after_a_growth_whose_ranks_may_still_fail(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    for generation, wait_s in ((2, 10), (3, 20), (4, 40)):
        await cast.die((generation, 1))
        after = (await cast.events("abandon"))[-1]
        assert f"in {wait_s} s" in after["message"]
        cast.harness.clock.skipped = timedelta(seconds=wait_s - 9)  # longer than any wait before it
        await cast.turn()
        assert cast.started(generation + 1) == {}
        cast.harness.clock.skipped = timedelta(seconds=wait_s + 1)
        await cast.turn()
    await cast.ready((5, 1))
    await cast.switch(5)
    await cast.resize(1)
    await cast.switch(6)
    await cast.leave((5, 1), 6)
    await cast.resize(2)
    await cast.die((7, 1))
    assert "in 80 s" in (await cast.events("abandon"))[-1]["message"]


async def test_newcomers_that_are_too_slow(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    cast.harness.clock.skipped += timedelta(seconds=READY_WITHIN_S - 60)
    await cast.harness.scheduler.expire()
    assert (await cast.job()).state is JobState.RESIZING
    cast.harness.clock.skipped += timedelta(seconds=61)
    await cast.harness.scheduler.expire()
    assert (await cast.job()).state is JobState.RESIZING, (
        "while no API is up, nobody could say that it was ready"
    )
    await cast.api_was_up(for_s=HEARD_WITHIN_S - 20)
    await cast.harness.scheduler.expire()
    assert (await cast.job()).state is JobState.RESIZING
    await cast.api_was_up(for_s=HEARD_WITHIN_S + 1)
    await cast.harness.scheduler.expire()
    await cast.deliver()
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.RUNNING, Reason.HUNG)
    assert "new ranks on alpha were not ready" in job.message
    assert cast.stops() == {("alpha", 2, 2, "kill")}
    await cast.stopped(2, signal=9)
    assert await cast.held() == 1


async def test_members_that_never_switch_are_started_anew(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    cast.harness.clock.skipped += timedelta(seconds=SWITCHED_WITHIN_S + 1)
    await cast.api_was_up(for_s=HEARD_WITHIN_S + 1)
    await cast.harness.scheduler.expire()
    await cast.deliver()
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert cast.stops() == {("alpha", 1, 0, "kill"), ("alpha", 2, 2, "kill")}
    await cast.switch(2)
    assert (await cast.job()).state is JobState.RECOVERING, "too late"
    await cast.stopped(1, 2, signal=9)
    await cast.turn()
    assert list(cast.started(3)) == ["alpha"]
    assert (await cast.job()).state is JobState.STARTING


async def test_a_job_that_never_said_that_it_is_live_is_restarted(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.harness.submit(elastic={"min": 1, "max": 2})
    await cast.turn()
    await cast.news("alpha", cast.entry(1, "ranks_started", how="spawn"))
    await cast.say((1, 0), "first_step", 1, samples=32)
    await cast.resize(2)
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}
    assert (await cast.job()).state is JobState.RESIZING


async def test_a_job_that_wants_restarts_is_never_changed_in_place(cast: Cast) -> None:
    await cast.join(alpha=2)
    run = await cast.begin(1, elastic={"resize": "restart"})
    assert not run.live
    await cast.resize(2)
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}


async def unbegun(cast: Cast) -> None:
    """A job whose rank has a process and has called `headway.init`, and has made no step."""
    await cast.join(alpha=2)
    await cast.harness.submit(elastic={"min": 1, "max": 2})
    await cast.turn()
    await cast.news("alpha", cast.entry(1, "ranks_started", how="zygote"))
    await cast.say((1, 0), "hello", 1)
    assert (await cast.job()).state is JobState.RUNNING


async def test_a_resize_before_the_first_step_waits_and_is_then_made_in_place(cast: Cast) -> None:
    await unbegun(cast)
    await cast.resize(2)
    job = await cast.job()
    assert (job.state, job.size, cast.stops()) == (JobState.RUNNING, 1, set())
    assert "2 cpu slots once its ranks have made their first step" in job.present
    await cast.say((1, 0), "first_step", 1, samples=32, live=True)
    await cast.turn()
    assert (await cast.job()).state is JobState.RESIZING
    await cast.ready((2, 1))
    await cast.switch(2)
    job = await cast.job()
    assert (job.size, job.attempt, cast.stops()) == (2, 1, set())


async def test_a_resize_waits_for_the_first_step_for_a_limited_time(cast: Cast) -> None:
    await unbegun(cast)
    await cast.resize(2)
    cast.harness.clock.skipped += timedelta(seconds=STEP_WITHIN_S)
    await cast.turn()
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}


async def test_a_forced_resize_restarts_before_the_first_step(cast: Cast) -> None:
    await unbegun(cast)
    await cast.resize(2)
    answer = await cast.harness.post("jobs/job/resize", {"slots": 2, "force": True})
    assert (answer.status_code, answer.json()["state"]) == (202, "RESIZING")
    await cast.deliver()
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}
    await cast.stopped(1)
    await cast.turn()
    assert (list(cast.started(2)), await cast.held()) == (["alpha"], 2)


async def test_a_round_leaves_a_job_without_a_step_as_it_is(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.harness.submit(elastic={"min": 1, "max": 2})
    await cast.harness.post("jobs/job/resize", {"slots": 2})
    await cast.turn()
    await cast.news("alpha", cast.entry(1, "ranks_started", how="zygote"))
    await cast.harness.post("jobs/job/resize", {"slots": None})
    await cast.harness.submit("urgent", priority=90)
    await cast.turn()
    assert ((await cast.job()).state, cast.stops()) == (JobState.RUNNING, set())
    await cast.say((1, 0), "first_step", 1, samples=32, live=True)
    await cast.turn()
    assert cast.members(2) == {(1, 0): 0}, "it shrinks in place for the other job"
    assert cast.stops() == set()


async def test_members_that_do_not_meet_a_new_rank_go_on_without_it(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(1)
    await cast.resize(2)
    host, newcomer = cast.homes[1, 0][0], cast.homes[2, 1][0]
    ports = {node: run.store_port for generation in (1, 2) for node, run in cast.started(generation).items()}
    address = "127.0.0.1"  # of both nodes, so no name stands beside it
    assert cast.started(2)[newcomer].env["HEADWAY_REACH"] == f"{address}:{ports[host]}"
    await cast.ready((2, 1))
    why = f"{newcomer} cannot reach {address}:41000: no answer"
    await cast.say((2, 1), "cannot_meet", 2, meeting=2, why=why)
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures) == (
        JobState.RECOVERING,
        Reason.UNREACHABLE,
        0,
    )
    assert f"{why}; the next attempt" in job.message
    await cast.say((1, 0), "cannot_meet", 1, meeting=2, why="not all 2 members of generation 2 arrived")
    assert cast.members(3) == {(1, 0): 0}
    assert (newcomer, 2, 2, "kill") in cast.stops()
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 1, 1)
    await cast.turn()
    assert cast.started(4) == {}
