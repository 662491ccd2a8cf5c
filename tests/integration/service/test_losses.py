"""Ranks and nodes that are lost: the others go on in place, as long as there are others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio

from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.cast import Born, Cast
from tests.integration.service.conftest import Harness
from tests.integration.service.test_faults import beat


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def lose_node(cast: Cast, name: str) -> None:
    """The node is silent for long, the others are not."""
    harness = cast.harness
    await beat(harness, harness.clock.now())
    harness.clock.skipped += timedelta(seconds=20)
    await beat(harness, harness.clock.now())
    async with harness.service.database.begin() as tx:
        for node in (await tx.nodes.many([one.joined.node_id for one in cast.agents.values()])).values():
            if node.name != name:
                await tx.nodes.save(replace(node, seen_at=harness.clock.now()))
    await harness.scheduler.expire()
    await cast.deliver()
    await cast.check()


async def test_a_killed_rank_costs_no_restart(cast: Cast) -> None:
    await cast.join(alpha=1, beta=2)
    await cast.begin(3)
    alpha = next(who for who, home in cast.homes.items() if home[0] == "alpha")
    await cast.die(alpha)
    job = await cast.job()
    assert (job.state, job.reason, job.generation) == (JobState.RECOVERING, Reason.RANK_LOST, 1)
    assert "SIGKILL" in job.message
    assert "2 of 3 ranks go on" in job.message
    assert {one.lost for one in cast.orders(2).values()} == {True}
    assert "beta" in cast.orders(2)
    assert list(cast.members(2).values()) == [0, 1]
    assert alpha not in cast.members(2)
    assert cast.stops() == set(), "nobody is stopped"
    await cast.switch(2, lost_steps=1, pause_s=0.12)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 2, 1)
    assert (job.infrastructure_failures, job.progress.lost_steps) == (0, 1)
    (event,) = await cast.events("switch")
    assert event["message"] == "continues with 2 of 3 slots after a loss: paused 0.12 s, 1 step repeated"
    await cast.turn()
    assert list(cast.started(3)) == [], "not measured: nothing to gain is known"


async def test_what_was_lost_grows_back_in_the_next_round(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2, elastic={"min": 2, "max": 2})
    await cast.die((1, 1))
    await cast.switch(2)
    assert (await cast.job()).size == 1
    await cast.turn()
    assert (await cast.job()).state is JobState.RESIZING
    assert [one.slot for one in cast.started(3)["alpha"].ranks] == [cast.homes[1, 1][1]]
    await cast.ready((3, 1))
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.size) == (JobState.RUNNING, 2)


async def test_below_its_smallest_size_it_does_not_stay_without_room(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(2, elastic={"min": 2, "max": 2})
    await lose_node(cast, cast.homes[1, 1][0])
    await cast.switch(2)
    assert (await cast.job()).state is JobState.RUNNING
    await cast.turn()
    job = await cast.job()
    assert job.state is JobState.RESIZING
    assert {mode for *_, mode in cast.stops()} == {"checkpoint"}
    await cast.stopped(1)
    job = await cast.job()
    assert (job.state, job.size) == (JobState.PENDING, 0)


async def test_rank_0_is_lost(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(2)
    await cast.die((1, 0))
    assert cast.members(2) == {(1, 1): 0}
    node = cast.homes[1, 1][0]
    assert cast.orders(2)[node].store_port == cast.started(1)[node].store_port
    await cast.switch(2)
    assert (await cast.job()).state is JobState.RUNNING


async def test_ranks_that_die_together_are_one_loss(cast: Cast) -> None:
    await cast.join(alpha=3)
    await cast.begin(3)
    await cast.die((1, 0), (1, 2))
    assert cast.members(2) == {(1, 1): 0}
    assert cast.orders(3) == {}
    await cast.switch(2)
    assert (await cast.job()).state is JobState.RUNNING


async def test_ranks_that_die_one_after_another(cast: Cast) -> None:
    """The second is lost while the others gather: it is no failure of its own."""
    await cast.join(alpha=3)
    await cast.begin(3, retry={"infrastructure": 0})
    await cast.die((1, 0))
    await cast.die((1, 2))
    assert cast.members(3) == {(1, 1): 0}
    await cast.say((1, 1), "switched", 2, 0, samples=1, world_size=2, pause_s=0.1, lost_steps=0, sync_bytes=0)
    assert (await cast.job()).state is JobState.RECOVERING, "that order is out of date"
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.generation, job.infrastructure_failures) == (JobState.RUNNING, 3, 0)


async def test_nobody_survives(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    saved = {"uri": "file:///c", "samples": 320, "size_bytes": 1, "save_s": 0.1, "total_s": 0.1}
    await cast.say((1, 0), "checkpointed", 1, **saved)
    await cast.die((1, 0), (1, 1))
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures) == (JobState.RECOVERING, Reason.RANK_LOST, 1)
    assert "checkpoint at 320 samples" in job.message
    await cast.turn()
    assert not cast.started(2)["alpha"].joins


async def test_a_lost_node_with_survivors_elsewhere(cast: Cast) -> None:
    await cast.join(alpha=2, beta=1)
    await cast.begin(3)
    await lose_node(cast, "alpha")
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.NODE_LOST)
    beta = next(who for who, home in cast.homes.items() if home[0] == "beta")
    assert cast.members(2) == {beta: 0}
    assert set(cast.orders(2)) == {"beta"}
    await cast.switch(2)
    job = await cast.job()
    assert (job.state, job.size, await cast.held()) == (JobState.RUNNING, 1, 1)
    # The node comes back, and what it still runs is over.
    reply = await cast.agents["alpha"].report(holding=[{"job_id": job.id, "generation": 1}])
    assert [one.generation for one in reply.stop] == [1]
    gone = [who for who in cast.homes if who != beta]
    await cast.say(gone[0], "metrics", 1, epoch=0, samples=1, values={"loss": 1.0})
    await cast.news("alpha", *(cast.exit(who, signal=9) for who in gone), cast.entry(1, "released"))
    job = await cast.job()
    assert (job.state, job.size, job.progress.metrics) == (JobState.RUNNING, 1, {})
    assert await cast.held() == 1


async def test_every_node_is_lost(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    await lose_node(cast, "alpha")
    job = await cast.job()
    assert (job.state, job.reason, await cast.held()) == (JobState.RECOVERING, Reason.NODE_LOST, 0)
    await cast.join(beta=1)
    await cast.turn()
    assert list(cast.started(2)) == ["beta"]


async def test_a_loss_while_newcomers_prepare_gives_them_up(cast: Cast) -> None:
    await cast.join(alpha=3)
    await cast.begin(2)
    await cast.resize(3)
    await cast.die((1, 1))
    assert ("alpha", 2, 2, "kill") in cast.stops()
    assert cast.members(3) == {(1, 0): 0}
    await cast.ready((2, 2))
    assert cast.orders(2) == {}
    await cast.switch(3)
    assert (await cast.job()).size == 1
    await cast.stopped(2, signal=9)
    await cast.turn()
    assert len(cast.started(4)["alpha"].ranks) == 2, "it is no newcomer's fault: tried again at once"


@pytest.mark.parametrize("who", [(1, 0), (1, 1), (2, 2)])
async def test_a_loss_while_an_ordered_switch_is_under_way(cast: Cast, who: Born) -> None:
    await cast.join(alpha=3)
    await cast.begin(2)
    await cast.resize(3)
    await cast.ready((2, 2))
    await cast.die(who)
    survivors = {one for one in ((1, 0), (1, 1), (2, 2)) if one != who}
    assert set(cast.members(3)) == survivors
    assert cast.orders(3)["alpha"].lost
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.generation, job.size) == (JobState.RUNNING, 3, 2)


async def test_a_leaver_that_is_killed_before_it_left_breaks_the_switch(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.resize(1)
    await cast.die((1, 1))
    assert cast.members(3) == {(1, 0): 0}
    await cast.switch(3)
    assert (await cast.job()).state is JobState.RUNNING


async def test_a_leaver_that_dies_after_it_left_is_no_loss(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.resize(1)
    await cast.say((1, 1), "left", 1, samples=640, joined=2)
    await cast.die((1, 1), signal=6)
    assert cast.orders(3) == {}
    await cast.switch(2)
    assert (await cast.job()).generation == 2


async def test_old_ranks_that_die_in_a_whole_move(cast: Cast) -> None:
    """The newcomers load the last checkpoint that is complete."""
    await cast.join(alpha=1)
    await cast.begin(1)
    await cast.join(beta=1)
    await cast.harness.post("nodes/alpha/drain")
    await cast.turn()
    await cast.ready((2, 0))
    await cast.die((1, 0))
    assert cast.members(3) == {(2, 0): 0}
    await cast.switch(3)
    job = await cast.job()
    assert (job.state, job.generation, job.allocation) == (JobState.RUNNING, 3, {"beta": [0]})


async def test_the_newcomers_node_is_lost(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    await cast.join(beta=1)
    await cast.resize(2)
    assert list(cast.started(2)) == ["beta"]
    await lose_node(cast, "beta")
    job = await cast.job()
    assert (job.state, job.reason, await cast.held()) == (JobState.RUNNING, Reason.NODE_LOST, 1)
    assert "next attempt" not in job.message
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING


async def test_a_node_of_leavers_is_lost(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(2)
    await cast.resize(1)
    ((stay, _),) = cast.members(2).items()
    leaver = next(who for who in ((1, 0), (1, 1)) if who != stay)
    await cast.switch(2)
    await lose_node(cast, cast.homes[leaver][0])
    job = await cast.job()
    assert (job.state, job.size, await cast.held()) == (JobState.RUNNING, 1, 1)


async def test_a_script_that_fails_fails_its_job(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.news("alpha", cast.exit((1, 1), exit_code=1, log_tail=["ValueError: x"]))
    assert cast.stops() == {("alpha", 1, 0, "kill")}
    await cast.stopped(1, signal=9)
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.USER_ERROR)
    assert "ValueError" in job.message


async def test_ranks_that_differ_start_again_once_and_then_fail_their_job(cast: Cast) -> None:
    tail = ["headway: REPLICAS_DIFFER: 1.bias differs on rank 1"]
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    await cast.switch(2)
    for who in ((2, 1), (1, 0)):
        await cast.die(who, exit_code=75, log_tail=tail)
    job = await cast.job()
    assert (job.state, job.reason, job.size) == (JobState.RECOVERING, Reason.REPLICAS_DIFFER, 0)
    assert "1.bias differs on rank 1; retry 1 of 3" in job.message
    await cast.turn()
    assert (await cast.job()).attempt == 2
    last = (await cast.job()).generation
    for number in (0, 1):
        await cast.die((last, number), exit_code=75, log_tail=tail)
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.REPLICAS_DIFFER)
    assert "1.bias differs on rank 1; they differed in the same way before" in job.message


async def test_a_script_that_fails_while_newcomers_prepare(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.news("alpha", cast.exit((1, 0), exit_code=1))
    assert cast.stops() == {("alpha", 1, 0, "kill"), ("alpha", 2, 2, "kill")}
    await cast.stopped(1, 2, signal=9)
    assert (await cast.job()).state is JobState.FAILED


async def test_a_survivor_that_cannot_go_on_is_judged_by_what_was_killed_first(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.die((1, 1))
    await cast.die((1, 0), exit_code=1)
    job = await cast.job()
    assert (job.state, job.reason, job.user_errors) == (JobState.RECOVERING, Reason.RANK_LOST, 0)
    assert (job.infrastructure_failures, await cast.held()) == (1, 0)


async def test_losses_without_progress_in_between_run_out(cast: Cast) -> None:
    await cast.join(alpha=4)
    await cast.begin(4, retry={"infrastructure": 1})
    for generation, who in ((2, (1, 3)), (3, (1, 2))):
        await cast.die(who)
        await cast.switch(generation, samples=640)
    assert (await cast.job()).infrastructure_failures == 1
    await cast.die((1, 1))
    job = await cast.job()
    assert job.state is JobState.RECOVERING
    assert cast.stops() == {("alpha", 1, 0, "kill")}
    await cast.stopped(1, signal=9)
    assert (await cast.job()).state is JobState.FAILED


async def test_losses_with_progress_in_between_never_run_out(cast: Cast) -> None:
    await cast.join(alpha=4)
    await cast.begin(4, retry={"infrastructure": 0})
    for generation, who in ((2, (1, 3)), (3, (1, 2)), (4, (1, 1))):
        await cast.die(who)
        await cast.switch(generation, samples=640 * generation)
        ranks = {rank: one for one, rank in cast.members(generation).items()}
        await cast.say(ranks[0], "completed", generation, 0, samples=640 * generation + 1)
    job = await cast.job()
    assert (job.state, job.infrastructure_failures) == (JobState.RUNNING, 0)


async def test_cancel_while_survivors_gather(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.die((1, 1))
    await cast.harness.post("jobs/job/cancel")
    await cast.deliver()
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}
    await cast.news(
        "alpha", cast.exit((1, 0), exit_code=143, stopped_by_agent=True), cast.entry(1, "released")
    )
    assert (await cast.job()).state is JobState.CANCELLED


async def test_pause_while_survivors_gather(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.die((1, 1))
    await cast.harness.post("jobs/job/pause")
    await cast.deliver()
    assert cast.stops() == {("alpha", 1, 0, "checkpoint")}
    await cast.news(
        "alpha", cast.exit((1, 0), exit_code=143, stopped_by_agent=True), cast.entry(1, "released")
    )
    assert (await cast.job()).state is JobState.PAUSED


async def test_training_ends_while_survivors_gather(cast: Cast) -> None:
    """The peer was killed when there was nothing left to do together."""
    await cast.join(alpha=2)
    await cast.begin(2)
    await cast.die((1, 1))
    await cast.say((1, 0), "completed", 1, samples=1000)
    await cast.die((1, 0), exit_code=0, completed=True)
    job = await cast.job()
    assert (job.state, job.progress.samples) == (JobState.SUCCEEDED, 1000)


async def test_a_loss_before_the_first_step_is_answered_by_a_restart(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.harness.submit(elastic={"min": 2, "max": 2})
    await cast.turn()
    await cast.news("alpha", cast.entry(1, "ranks_started", how="spawn"))
    await cast.die((1, 0))
    assert cast.stops() == {("alpha", 1, 0, "kill")}
    assert (await cast.job()).state is JobState.RECOVERING
