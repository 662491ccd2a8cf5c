"""Changes in place that meet other wishes, other news, or the end of training."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_asyncio

from headway.contract.agents import COMMANDS, ReportRequest
from headway.contract.views.jobs import JobState, Reason
from service.usecases.reports.ingest import ingest
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness
from tests.integration.service.test_live_changes import grown


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def test_stale_and_early_words_are_not_believed(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    counts = {"samples": 999_999, "world_size": 2, "pause_s": 9.0, "lost_steps": 9, "sync_bytes": 0}
    await cast.say((1, 0), "switched", 2, 0, **counts)
    assert (await cast.job()).generation == 1, "nobody had ordered it"
    await cast.say((2, 1), "completed", 2, samples=999_999)
    await cast.ready((2, 1))
    await cast.say((2, 1), "switched", 2, 0, **counts)
    assert (await cast.job()).generation == 1, "only rank 0 speaks for rank 0"
    await cast.switch(2, samples=640)
    await cast.say((1, 0), "metrics", 1, epoch=0, samples=1, values={"loss": 5.0})
    await cast.say((2, 1), "metrics", 2, 0, epoch=0, samples=1, values={"loss": 5.0})
    job = await cast.job()
    assert (job.progress.metrics, job.generation) == ({}, 2)


async def test_news_that_repeat_change_nothing(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    for _ in range(3):
        await cast.ready((2, 1))
    for _ in range(2):
        await cast.switch(2)
    await cast.resize(1)
    for _ in range(2):
        await cast.switch(3)
        await cast.leave((2, 1), 3)
        await cast.news("alpha", cast.entry(2, "released"))
    job = await cast.job()
    assert (job.state, job.generation, job.size, await cast.held()) == (JobState.RUNNING, 3, 1, 1)
    assert len(await cast.events("switch")) == 2


async def test_two_changes_at_once_take_turns(cast: Cast) -> None:
    await cast.join(alpha=3)
    await cast.begin(1)
    await cast.resize(2)
    await cast.turn()
    await cast.resize(3)
    assert cast.stops() == {("alpha", 2, 2, "kill")}, "what was prepared has the wrong size now"
    await cast.stopped(2, signal=9)
    await cast.turn()
    ready = [(3, one.rank) for one in cast.started(3)["alpha"].ranks]
    assert len(ready) == 2
    await cast.ready(*ready)
    await cast.resize(2)
    assert (await cast.job()).state is JobState.RESIZING, "an order is out: it comes first"
    await cast.switch(3)
    await cast.turn()
    assert cast.members(4) == {(1, 0): 0, (3, 1): 1}
    await cast.switch(4)
    assert (await cast.job()).size == 2


async def test_the_same_size_again_leaves_what_is_prepared(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.resize(2)
    assert cast.stops() == set()
    assert (await cast.job()).state is JobState.RESIZING


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("verb", "end"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
async def test_cancel_and_pause_while_it_changes(
    cast: Cast, verb: str, end: JobState, *, ordered: bool
) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    if ordered:
        await cast.ready((2, 1))
    assert (await cast.harness.post(f"jobs/job/{verb}")).status_code == 202
    await cast.deliver()
    newcomers = "checkpoint" if ordered else "kill"
    assert {("alpha", 1, 0, "checkpoint"), ("alpha", 2, 2, newcomers)} <= cast.stops()
    if ordered:
        await cast.switch(2)  # they had switched when the stop came
        await cast.say((1, 0), "stopped", 2, 0, samples=960)
    else:
        await cast.say((1, 0), "stopped", 1, samples=960)
    await cast.stopped(2, **({} if ordered else {"signal": 9}))
    assert (await cast.job()).state not in {end, JobState.RUNNING}
    await cast.stopped(1)
    job = await cast.job()
    assert (job.state, job.size, await cast.held()) == (end, 0, 0)
    assert job.progress.samples == 960
    if end is JobState.PAUSED:
        await cast.harness.post("jobs/job/resume")
        await cast.turn()
        assert list(cast.started(3)) == ["alpha"]


async def test_force_cancel_kills_every_start(cast: Cast) -> None:
    await grown(cast)
    await cast.harness.post("jobs/job/cancel", {"force": True})
    await cast.deliver()
    assert cast.stops() == {("alpha", 1, 0, "kill"), ("alpha", 2, 2, "kill")}
    await cast.stopped(1, 2, signal=9)
    assert (await cast.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("ordered", [False, True])
async def test_training_ends_while_newcomers_wait(cast: Cast, *, ordered: bool) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    if ordered:
        await cast.ready((2, 1))
    await cast.say((1, 0), "completed", 1, samples=1000)
    await cast.die((1, 0), exit_code=0, completed=True)
    assert ("alpha", 2, 2, "kill") in cast.stops()
    await cast.stopped(2, signal=9)
    job = await cast.job()
    assert (job.state, job.reason, job.progress.samples) == (JobState.SUCCEEDED, Reason.COMPLETED, 1000)


async def test_a_job_that_has_grown_succeeds_when_all_its_members_do(cast: Cast) -> None:
    await grown(cast)
    await cast.die((2, 1), exit_code=0, completed=True)
    assert (await cast.job()).state is JobState.RUNNING
    await cast.die((1, 0), exit_code=0, completed=True)
    assert (await cast.job()).state is JobState.SUCCEEDED


async def test_a_restart_follows_the_newest_number(cast: Cast) -> None:
    """A live job of three starts is preempted whole, and started again as one."""
    await grown(cast)
    await cast.harness.post("jobs/job/pause")
    await cast.deliver()
    assert cast.stops() == {("alpha", 1, 0, "checkpoint"), ("alpha", 2, 2, "checkpoint")}
    await cast.stopped(1, 2)
    await cast.harness.post("jobs/job/resume")
    await cast.turn()
    run = cast.started(3)["alpha"]
    assert (run.joins, run.world_size, run.attempt) == (False, 2, 2)


async def test_stores_get_ports_of_their_own(cast: Cast) -> None:
    await grown(cast)
    ports = {run.store_port for number in (1, 2) for run in cast.started(number).values()}
    assert len(ports) == 2
    async with cast.harness.service.database.begin() as tx:
        node_id = cast.agents["alpha"].joined.node_id
        assert await tx.grants.ports_in_use([node_id]) == {node_id: ports}
    await cast.resize(1)
    await cast.switch(3)
    await cast.leave((2, 1), 3)
    async with cast.harness.service.database.begin() as tx:
        assert await tx.grants.ports_in_use([node_id]) == {node_id: {cast.started(1)["alpha"].store_port}}


async def crash_before_the_commit(cast: Cast, report: ReportRequest) -> None:
    """All that is done for alpha's report, up to the commit."""
    node_id = cast.agents["alpha"].joined.node_id
    launch, now = cast.harness.service.launch, cast.harness.clock.now()
    async with cast.harness.service.database.begin() as tx:
        await ingest(tx, node_id, report, launch=launch, lease_s=60, now=now)
        assert (await tx.jobs.lock("job")).state is JobState.RECOVERING
        raise RuntimeError("crash")


async def test_news_whose_transaction_fails_are_taken_in_when_they_come_again(cast: Cast) -> None:
    """The process dies after a loss was answered and before it is committed."""
    await cast.join(alpha=2)
    await cast.begin(2)
    agent = cast.agents["alpha"]
    news = [cast.exit((1, 1), signal=9), cast.release((1, 1))]
    stamped = [{"sequence": next(agent.clock), "at": cast.harness.clock.now(), **one} for one in news]
    report = ReportRequest.model_validate({"instance": "instance-alpha", "entries": stamped})
    with pytest.raises(RuntimeError, match="crash"):
        await crash_before_the_commit(cast, report)
    await cast.deliver()
    assert (await cast.job()).state is JobState.RUNNING
    assert cast.orders(2) == {}
    for _ in range(2):
        await agent.send(report.model_dump(mode="json")["entries"], [])
    await cast.deliver()
    assert cast.members(2) == {(1, 0): 0}
    assert cast.orders(3) == {}
    await cast.switch(2)
    assert (await cast.job()).size == 1


async def test_commands_that_are_pushed_again_are_the_same(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    later = cast.harness.clock.now() + timedelta(seconds=60)
    async with cast.harness.service.database.begin() as tx:
        again = await tx.commands.take_due(later, 5.0, 10)
    assert [COMMANDS.validate_json(one.body) for one in again] == [cast.orders(2)["alpha"]]
