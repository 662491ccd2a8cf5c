"""Trials of a sweep that end early in the running service, with played agents."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from headway.contract.agents import RunCommand, StopCommand
from headway.contract.manifest import Name
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.counting import statements
from tests.integration.service.test_checkpoints import save
from tests.integration.service.test_life_of_a_job import message
from tests.integration.service.test_sweeps import ends, view

ASHA = {"metric": "loss", "stop": {"asha": {"min_progress": 1, "reduction": 3}}}


async def running(harness: Harness, trials: int, **sweep: Any) -> tuple[Agent, dict[str, RunCommand]]:
    """A sweep with all its trials running on one agent, and their commands by name."""
    await harness.submit_sweep("gpt", {"lr": list(range(1, trials + 1))}, sweep={**ASHA, **sweep})
    agent = await harness.join(slots=trials)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands() if isinstance(one, RunCommand)}
    assert len(runs) == trials
    for run in runs.values():
        await agent.report(entry("ranks_started", run, how="zygote"))
    return agent, runs


async def reports(agent: Agent, run: RunCommand, epoch: int, loss: float) -> None:
    told = message("metrics", run.generation, epoch=epoch, samples=64 * (epoch + 1), values={"loss": loss})
    await agent.report(entry("rank_message", run, **told))


async def states(harness: Harness) -> list[JobState]:
    return [one.state for one in (await view(harness)).trials]


async def rungs(harness: Harness) -> list[tuple[int, int, float]]:
    async with harness.service.database.session() as session:
        rows = await session.rows(
            text(
                "SELECT number, rung, value FROM rung_values JOIN trials USING (job_id) ORDER BY number, rung"
            )
        )
    return [(row.number, row.rung, row.value) for row in rows]


async def test_trials_outside_the_best_third_end_and_their_slots_go_to_others(harness: Harness) -> None:
    agent, runs = await running(harness, 3)
    for name, loss in {"gpt-1": 2.0, "gpt-2": 1.0, "gpt-3": 3.0}.items():
        await reports(agent, runs[name], 0, loss)
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.RUNNING] * 3  # epoch 0: none has reached a rung
    await reports(agent, runs["gpt-1"], 1, 2.0)
    await reports(agent, runs["gpt-2"], 1, 1.0)
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.RUNNING] * 3  # two of three values
    await reports(agent, runs["gpt-3"], 1, 3.0)
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.CANCELLING, JobState.RUNNING, JobState.CANCELLING]
    trial = await harness.job("gpt-1")
    assert trial.reason is Reason.STOPPED_EARLY
    assert trial.message == (
        "trial 1 ends at 1 epoch: its loss 2 is not among the best third (1 or lower) of 3 trials there"
    )
    await harness.turn()
    stops = [one for one in await agent.commands() if isinstance(one, StopCommand)]
    assert sorted((one.job_id, one.mode) for one in stops) == sorted(
        (runs[name].job_id, "checkpoint") for name in ("gpt-1", "gpt-3")
    )
    await ends(agent, runs["gpt-1"], code=143)
    await ends(agent, runs["gpt-3"], code=143)
    found = await view(harness)
    assert [one.state for one in found.trials] == ["CANCELLED", "RUNNING", "CANCELLED"]
    assert [one.reason for one in found.trials][::2] == [Reason.STOPPED_EARLY] * 2
    assert found.best == 2
    kinds = [one["kind"] for one in (await harness.client.get("/api/v1/jobs/gpt-1/events")).json()["items"]]
    assert kinds[-2:] == ["cancel", "vanish"]


async def test_values_at_rungs_are_the_first_there_and_later_ones_change_nothing(harness: Harness) -> None:
    agent, runs = await running(harness, 3)
    await reports(agent, runs["gpt-1"], 1, 5.0)
    await reports(agent, runs["gpt-1"], 2, 0.1)
    await reports(agent, runs["gpt-2"], 4, 2.0)  # passes two rungs at once
    assert await rungs(harness) == [(1, 0, 5.0), (2, 0, 2.0), (2, 1, 2.0)]
    await reports(agent, runs["gpt-3"], 1, 1.0)
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.CANCELLING, JobState.RUNNING, JobState.RUNNING]
    assert [one.value for one in (await view(harness)).trials] == [0.1, 2.0, 1.0]


async def test_pass_after_a_restart_of_the_scheduler_repeats_nothing(harness: Harness) -> None:
    agent, runs = await running(harness, 3)
    for number, name in enumerate(sorted(runs)):
        await reports(agent, runs[name], 1, float(number))
    await harness.scheduler.end_early()
    events = (await harness.client.get("/api/v1/jobs/gpt-3/events")).json()["items"]
    await harness.scheduler.end_early()
    assert (await harness.client.get("/api/v1/jobs/gpt-3/events")).json()["items"] == events
    assert [one["kind"] for one in events].count("cancel") == 1


async def test_trial_that_its_user_resumes_is_not_ended_again(harness: Harness) -> None:
    agent, runs = await running(harness, 3)
    for number, name in enumerate(sorted(runs)):
        await reports(agent, runs[name], 1, float(number))
    await harness.scheduler.end_early()
    await ends(agent, runs["gpt-3"], code=143)
    await save(harness, runs["gpt-3"].job_id, Name(1, 0, 64), 64)
    resumed = await harness.post("jobs/gpt-3/resume")
    assert (resumed.status_code, resumed.json()["state"]) == (202, JobState.PENDING), resumed.text
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.RUNNING, JobState.CANCELLING, JobState.PENDING]


async def test_paused_trials_stay_and_count(harness: Harness) -> None:
    agent, runs = await running(harness, 3)
    await reports(agent, runs["gpt-1"], 1, 9.0)
    await harness.post("jobs/gpt-1/pause")
    await ends(agent, runs["gpt-1"], code=143)
    await reports(agent, runs["gpt-2"], 1, 1.0)
    await reports(agent, runs["gpt-3"], 1, 2.0)
    await harness.scheduler.end_early()
    assert await states(harness) == [JobState.PAUSED, JobState.RUNNING, JobState.CANCELLING]
    await harness.post("jobs/gpt-1/resume")
    await harness.scheduler.end_early()
    assert (await states(harness))[0] is JobState.CANCELLED  # it waits for slots that better trials could use


async def test_sweep_without_stop_ends_no_trial_and_a_pass_reads_no_values(harness: Harness) -> None:
    agent, runs = await running(harness, 3, stop=None)
    for number, name in enumerate(sorted(runs)):
        await reports(agent, runs[name], 1, float(number))
    with statements(harness.service.database) as sent:
        await harness.scheduler.end_early()
    assert await states(harness) == [JobState.RUNNING] * 3
    assert await rungs(harness) == []
    assert sum("rung_values" in one for one in sent) <= 1, sent


async def test_view_of_a_sweep_reads_no_reported_values(harness: Harness) -> None:
    agent, runs = await running(harness, 2)
    await reports(agent, runs["gpt-1"], 0, 2.0)
    with statements(harness.service.database) as sent:
        assert (await view(harness)).trials[0].value == 2.0
    assert not [one for one in sent if "metrics" in one.replace("progress", "")], sent
