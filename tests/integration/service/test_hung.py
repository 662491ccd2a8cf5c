"""Ranks that hang: what the service makes of an agent's word for it, and of failures that come again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from headway.contract.agents import RunCommand, StopCommand
from headway.contract.views.jobs import JobState, Reason
from service.usecases.nodes.expire import end_overdue_switches
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.test_faults import beat
from tests.integration.service.test_life_of_a_job import message, progress, start, stop
from tests.integration.service.test_losses import lose_node

STACKS = ['rank 0, process 17:\nThread 0x1 (most recent call first):\n  File "train.py", line 9 in wait']


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


def hung(run: RunCommand, **fields: Any) -> dict[str, Any]:
    return entry("ranks_hung", run, **{"silent_s": 612.4, "usual_s": 0.25, "stacks": STACKS, **fields})


async def events(harness: Harness, *kinds: str) -> list[dict[str, Any]]:
    found = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    return [one for one in found if one["kind"] in kinds]


async def trains(harness: Harness, agent: Agent, generation: int = 1, samples: int = 640, at: int = 0) -> Any:
    run = await start(harness, agent)
    first = message("first_step", generation, samples=at)
    await agent.report(*(entry("rank_message", run, **one) for one in (first, progress(generation, samples))))
    return run


async def saved(agent: Agent, run: Any, samples: int) -> None:
    said = message(
        "checkpointed", run.generation, uri="x", samples=samples, size_bytes=1, save_s=0.1, total_s=0.1
    )
    await agent.report(entry("rank_message", run, **said))


async def killed(agent: Agent, run: Any) -> None:
    await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))


async def test_a_job_that_hangs_is_killed_with_its_stacks_and_starts_anew(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await trains(harness, agent)
    await agent.report(hung(run))
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert "no step for 612 s, although a step usually takes 0.25 s (node alpha)" in job.message
    (event,) = await events(harness, "hung")
    assert "line 9 in wait" in event["message"]
    assert event["data"] == {"node": "alpha", "silent_s": 612.4, "usual_s": 0.25, "stacks": STACKS}
    await harness.scheduler.deliver()
    (command,) = [one for one in await agent.commands() if isinstance(one, StopCommand)]
    assert (command.mode, command.dump_stacks) == ("kill", True)
    await stop(agent, run, exit_code=1)
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert (job.infrastructure_failures, job.user_errors, job.preemptions) == (1, 0, 0)
    assert "retry 1 of 3" in job.message
    await trains(harness, agent, 2)


async def test_all_nodes_of_a_job_that_hangs_leave_their_stacks(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    run = await cast.begin(2)
    await cast.news(cast.homes[1, 0][0], hung(run))
    stops = {node: one for node, told in cast.told.items() for one in told if isinstance(one, StopCommand)}
    assert set(stops) == {"alpha", "beta"}
    assert all((one.mode, one.dump_stacks) == ("kill", True) for one in stops.values())
    assert (await cast.job()).state is JobState.RECOVERING, "nobody knows who of a live job hangs"


async def test_a_stale_or_repeated_word_changes_nothing(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await trains(harness, agent)
    await agent.report(hung(run, generation=7))
    assert (await harness.job()).state is JobState.RUNNING, "no such generation"
    await agent.report(hung(run), entry("rank_message", run, **progress(1, 660)))
    assert (await harness.job()).state is JobState.RUNNING, "it trains on since"
    await agent.report(hung(run), hung(run))
    await agent.report(hung(run))
    assert len(await events(harness, "hung")) == 1
    await stop(agent, run)
    await agent.report(hung(run))
    second = await trains(harness, agent, 2)
    await agent.report(hung(run))
    assert (await harness.job()).state is JobState.RUNNING
    assert (await harness.job()).generation == second.generation == 2


async def test_a_job_that_is_being_stopped_has_its_grace(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await trains(harness, agent)
    await harness.post("jobs/job/pause")
    await agent.report(hung(run))
    assert (await harness.job()).state is JobState.RESIZING
    await stop(agent, run)
    assert (await harness.job()).state is JobState.PAUSED


async def test_newcomers_go_with_members_that_hang_but_an_ordered_switch_has_its_deadline(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    run = await cast.begin(1)
    home = cast.homes[1, 0][0]
    await cast.resize(2)
    await cast.ready(*(who for who in cast.homes if who[0] == 2))
    await cast.news(home, hung(run))
    assert (await cast.job()).state is JobState.RESIZING, "the switch is ordered: they stop to train"
    cast.harness.clock.skipped += timedelta(hours=2)
    for agent in cast.agents.values():
        await agent.report()
    async with cast.harness.service.database.begin() as tx:
        assert await end_overdue_switches(tx, cast.harness.service.launch, cast.harness.clock.now()) == [
            "job"
        ]
    await cast.deliver()
    assert {
        one.dump_stacks for told in cast.told.values() for one in told if isinstance(one, StopCommand)
    } == {True}
    await cast.stopped(1, 2, signal=9)
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures) == (JobState.RECOVERING, Reason.HUNG, 1)


async def test_members_that_hang_while_newcomers_come_up_are_started_anew_with_them(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    run = await cast.begin(1)
    await cast.resize(2)
    await cast.news(cast.homes[1, 0][0], hung(run))
    assert (await cast.job()).state is JobState.RECOVERING
    await cast.stopped(1, 2, signal=9)
    job = await cast.job()
    assert (job.reason, job.infrastructure_failures) == (Reason.HUNG, 1)
    assert await cast.held() == 0


async def test_a_job_that_hangs_again_and_again_at_the_same_place_fails(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(retry={"infrastructure": 1})
    for generation in (1, 2):
        run = await trains(harness, agent, generation)
        await agent.report(hung(run))
        await stop(agent, run)
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.HUNG)


async def test_a_script_that_finished_while_it_was_called_hung_has_succeeded(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await trains(harness, agent)
    await agent.report(hung(run))
    await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job()).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("hung_after", "limits"), [("auto", (600, True)), ("never", (None, False)), ("30s", (30, False))]
)
async def test_agents_are_told_what_the_job_file_says(
    harness: Harness, hung_after: str, limits: tuple[float | None, bool]
) -> None:
    agent = await harness.join()
    await harness.submit(hung_after=hung_after)
    run = await start(harness, agent)
    assert (run.hung_after_s, run.hung_when_still) == limits


async def test_failures_are_forgiven_to_a_job_that_gets_on(harness: Harness) -> None:
    """However often it is killed in a month."""
    agent = await harness.join()
    await harness.submit(retry={"infrastructure": 1})
    for generation in range(1, 6):
        run = await trains(harness, agent, generation, samples=1000 * generation)
        await saved(agent, run, 1000 * generation - 10)
        await killed(agent, run)
        job = await harness.job()
        assert (job.state, job.infrastructure_failures) == (JobState.RECOVERING, 1), job.message


async def test_one_that_dies_at_the_same_place_is_not_forgiven(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(retry={"infrastructure": 2})
    for generation in (1, 2, 3):
        assert (await harness.job()).state is not JobState.FAILED
        run = await trains(harness, agent, generation, samples=1000)
        await saved(agent, run, 900 + generation)
        await killed(agent, run)
        harness.clock.skipped += timedelta(seconds=60)
    assert (await harness.job()).state is JobState.FAILED


async def test_a_script_that_fails_in_the_same_way_each_time_is_stopped_before_its_retries_are(
    harness: Harness,
) -> None:
    agent = await harness.join()
    await harness.submit(retry={"user_errors": 100})
    for number in range(8):
        run = await start(harness, agent)
        tail = [f"pid {number * 17}", f"ConnectionError: cannot reach host{number}"]
        await agent.report(
            entry("rank_exited", run, rank=0, exit_code=1, log_tail=tail), entry("released", run)
        )
        harness.clock.skipped += timedelta(seconds=121)
        await beat(harness, harness.clock.now())
    job = await harness.job()
    assert (job.state, job.reason, job.user_errors) == (JobState.FAILED, Reason.USER_ERROR, 8)
    assert "in the same way 8 times in a row" in job.message
    assert "cannot reach host7" in job.message


async def test_a_job_that_takes_down_node_after_node_is_stopped(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1, gamma=1, delta=1)
    await cast.harness.submit(retry={"infrastructure": 100}, elastic={"resize": "restart"})
    lost = set()
    for generation in (1, 2, 3):
        await cast.turn()
        ((node, run),) = cast.started(generation).items()
        await cast.news(node, cast.entry(run.generation, "ranks_started", how="zygote"))
        await lose_node(cast, node)
        lost.add(node)
        cast.harness.clock.skipped += timedelta(seconds=4)  # the pause before a further try
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.NODE_LOST)
    assert all(node in job.message for node in lost)
    assert "it is not started on another node" in job.message


async def test_a_rank_that_the_kernel_killed_for_memory_says_so(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    tail = ["loading", "[headway] The kernel killed this rank: there was no memory left."]
    await agent.report(entry("rank_exited", run, rank=0, signal=9, log_tail=tail), entry("released", run))
    job = await harness.job()
    assert (job.reason, job.infrastructure_failures) == (Reason.OUT_OF_MEMORY, 1)
    assert "out of memory" in job.message
