"""The stop and the start that an ended job measured count for jobs that have none, in the running service."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.views.jobs import JobState
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import MeasuredRestart
from service.domain.cluster.usual_costs import UNMEASURED, UsualCosts
from service.domain.contention.tenure import tenure_of
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_life_of_a_job import message, start


async def usual(harness: Harness) -> tuple[tuple[MeasuredRestart, ...], UsualCosts, list[float]]:
    async with harness.service.database.begin() as tx:
        snapshot = await tx.rounds.snapshot(harness.clock.now(), {})
    scope = build_round(snapshot).scope
    return snapshot.restarts, scope.usual, tenure_of(scope).min_run_s.tolist()


async def test_the_restart_of_an_ended_job_counts_for_the_minimum_run_time_of_the_next(
    harness: Harness,
) -> None:
    agent = await harness.join(slots=1)
    await harness.submit("first")
    run = await start(harness, agent, "first")
    assert await usual(harness) == ((), UNMEASURED, [60.0])
    await agent.report(entry("rank_message", run, **message("first_step", run.generation, samples=32)))
    await harness.post("jobs/first/pause", {})
    await harness.scheduler.deliver()
    await agent.commands()
    ended = entry("rank_exited", run, rank=0, exit_code=143, stopped_by_agent=True)
    await agent.report(ended, entry("released", run))
    async with harness.service.database.begin() as tx:
        measured = await tx.jobs.lock(run.job_id)
        assert (measured.state, measured.progress.start_s is None) == (JobState.PAUSED, False)
        assert measured.progress.stop_s is not None
        slow = measured.progress.model_copy(update={"stop_s": 10.0, "start_s": 30.0})
        await tx.jobs.save(replace(measured, progress=slow))
    await harness.post("jobs/first/cancel", {"force": False})
    assert (await harness.job("first")).state is JobState.CANCELLED
    await harness.submit("next")
    restarts, costs, min_run_s = await usual(harness)
    assert restarts == (MeasuredRestart(stop_s=10.0, start_s=30.0),)
    assert (costs, min_run_s) == (UsualCosts(stop_s=10.0, start_s=30.0), [800.0])
