"""A job from submit to end, over the real API, Postgres and Redis, with a scripted agent."""

from __future__ import annotations

from typing import Any

from headway.contract.agents import StopCommand
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry, run_of


def message(kind: str, generation: int, **fields: Any) -> dict[str, Any]:
    return {"message": {"type": kind, "rank": 0, "generation": generation, "at_s": 1e9, **fields}}


def progress(generation: int, samples: int, steps: int = 20, step_s: float = 0.1) -> dict[str, Any]:
    return message(
        "progress",
        generation,
        epoch=0,
        samples=samples,
        total_samples=10_000,
        steps=steps,
        step_s_sum=steps * step_s,
        step_s_squares=steps * step_s**2,
        global_batch=32,
        local_batch=32,
        accumulation=1,
    )


async def start(harness: Harness, agent: Agent, name: str = "job") -> Any:
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="zygote"))
    assert (await harness.job(name)).state is JobState.RUNNING
    return run


async def stop(agent: Agent, run: Any, exit_code: int = 143, *, completed: bool = False) -> None:
    exits = [
        entry(
            "rank_exited",
            run,
            rank=one.rank,
            exit_code=exit_code,
            stopped_by_agent=True,
            completed=completed,
        )
        for one in run.ranks
    ]
    await agent.report(*exits, entry("released", run))


async def test_submit_run_succeed(harness: Harness) -> None:
    agent = await harness.join()
    job = await harness.submit(elastic={"min": 2})
    assert (job.state, job.reason) == (JobState.PENDING, Reason.SUBMITTED)
    run = await start(harness, agent)
    assert (run.world_size, [one.slot for one in run.ranks], run.hosts_store) == (2, [0, 1], True)
    await agent.report(
        entry("rank_exited", run, rank=0, exit_code=0, log_tail=["Unable to locate sufficient 2 gpus"]),
        entry("rank_exited", run, rank=1, exit_code=0),
        entry("released", run),
    )
    job = await harness.job()
    assert (job.state, job.reason, job.size) == (JobState.SUCCEEDED, Reason.NO_PROGRESS, 0)
    assert "Unable to locate sufficient 2 gpus" in job.message
    kinds = [one["kind"] for one in (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]]
    assert kinds == ["submit", "allocate", "start", "succeed"]


async def test_no_nodes_waits_with_a_reason(harness: Harness) -> None:
    await harness.submit()
    await harness.turn()
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.PENDING, Reason.WAITING_FOR_CAPACITY)
    assert "headway agent" in job.message


async def test_resize_by_request_stops_then_starts_at_the_new_size(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    run = await start(harness, agent)
    assert run.world_size == 1
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=32)))
    assert (await harness.post("jobs/job/resize", {"slots": 2})).status_code == 202
    await harness.turn()
    (stopping,) = await agent.commands()
    assert isinstance(stopping, StopCommand)
    assert stopping.mode == "checkpoint"
    assert (await harness.job()).state is JobState.RESIZING
    await stop(agent, run)
    assert (await harness.job()).state is JobState.STARTING
    await harness.scheduler.deliver()
    second = run_of(await agent.commands())
    assert (second.generation, second.world_size) == (2, 2)
    assert second.master_port != run.master_port
    await agent.report(entry("ranks_started", second, how="zygote"))
    job = await harness.job()
    assert (job.state, job.size, job.pinned_size) == (JobState.RUNNING, 2, 2)
    assert job.present == "2 slots, fixed by you"


async def test_measured_speed_lets_a_job_grow(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **progress(1, samples=640)))
    explain = (await harness.client.get("/api/v1/jobs/job/explain")).json()
    assert [one["slots"] for one in explain["options"]] == [1]
    await harness.turn()
    explain = (await harness.client.get("/api/v1/jobs/job/explain")).json()
    assert [(one["slots"], one["measured"]) for one in explain["options"]] == [(1, True), (2, False)]
    assert "started" in explain["options"][1]["note"]


async def test_killed_rank_recovers_from_the_checkpoint(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 2})
    run = await start(harness, agent)
    saved = message("checkpointed", 1, uri="file:///c", samples=320, size_bytes=1, save_s=0.1, total_s=0.1)
    await agent.report(entry("rank_message", run, **saved))
    failed = message("checkpoint_failed", 1, samples=640, why="the disk is full")
    await agent.report(entry("rank_message", run, **failed))
    events = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    assert (events[-1]["kind"], events[-1]["message"]) == (
        "checkpoint_failed",
        "the checkpoint at 640 samples could not be saved: the disk is full",
    )
    await agent.report(entry("rank_exited", run, rank=1, signal=9))
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    await agent.report(entry("rank_exited", run, rank=0, exit_code=1), entry("released", run))
    job = await harness.job()
    assert job.state is JobState.RECOVERING
    assert job.infrastructure_failures == 1
    assert "checkpoint at 320 samples" in job.message
    run = await start(harness, agent)
    assert run.generation == 2


async def test_failed_script_ends_with_its_last_lines(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    tail = ["Traceback (most recent call last):", "ZeroDivisionError: division by zero"]
    await agent.report(entry("rank_exited", run, rank=0, exit_code=1, log_tail=tail), entry("released", run))
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.USER_ERROR)
    assert "ZeroDivisionError" in job.message


async def test_pause_and_resume(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await harness.post("jobs/job/pause")
    await harness.scheduler.deliver()
    await agent.commands()
    await stop(agent, run)
    assert (await harness.job()).state is JobState.PAUSED
    await harness.turn()
    assert await agent.commands() == []
    await harness.post("jobs/job/resume")
    assert (await start(harness, agent)).generation == 2


async def test_cancel_while_running_and_while_waiting(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    await harness.submit()
    run = await start(harness, agent)
    await harness.submit("other")
    assert (await harness.post("jobs/other/cancel")).json()["state"] == "CANCELLED"
    assert (await harness.post("jobs/job/cancel", {"force": True})).json()["state"] == "CANCELLING"
    await harness.scheduler.deliver()
    (killing,) = await agent.commands()
    assert killing.mode == "kill"  # type: ignore[union-attr]
    await agent.report(
        entry("rank_exited", run, rank=0, signal=9, stopped_by_agent=True), entry("released", run)
    )
    assert (await harness.job()).state is JobState.CANCELLED
    assert (await harness.post("jobs/job/pause")).status_code == 409


async def test_drain_moves_the_job_to_another_node(harness: Harness) -> None:
    alpha = await harness.join("alpha", slots=1)
    await harness.submit()
    run = await start(harness, alpha)
    beta = await harness.join("beta", slots=1)
    assert (await harness.post("nodes/alpha/drain")).json()["state"] == "DRAINING"
    await harness.turn()
    assert (await harness.job()).reason is Reason.NODE_DRAINED
    await alpha.commands()
    await stop(alpha, run)
    await harness.turn()
    moved = run_of(await beta.commands())
    assert moved.generation == 2
    states = {
        one["name"]: one["state"] for one in (await harness.client.get("/api/v1/nodes")).json()["items"]
    }
    assert states == {"alpha": "DRAINED", "beta": "READY"}


async def test_a_released_slot_of_one_job_grows_another_only_when_it_is_free(harness: Harness) -> None:
    agent = await harness.join(slots=2)
    await harness.submit("wide", elastic={"min": 1, "max": 2})
    await harness.post("jobs/wide/resize", {"slots": 2})
    wide = await start(harness, agent, "wide")
    await agent.report(entry("rank_message", wide, **message("first_step", 1, samples=32)))
    await harness.post("jobs/wide/resize", {"slots": None})
    await harness.submit("narrow", priority=90)
    await harness.turn()
    assert (await harness.job("wide")).state is JobState.RESIZING
    assert (await harness.job("narrow")).state is JobState.PENDING
    await agent.commands()
    await stop(agent, wide)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands()}  # type: ignore[union-attr]
    assert {name: one.world_size for name, one in runs.items()} == {"wide": 1, "narrow": 1}  # type: ignore[union-attr]
    slots = [one.slot for run in runs.values() for one in run.ranks]  # type: ignore[union-attr]
    assert sorted(slots) == [0, 1]


async def test_wishes_without_effect_are_said(harness: Harness) -> None:
    job = await harness.submit(market="spot", goal={"max_cost_usd": 5, "objective": "cost"})
    assert job.message.endswith("this version does not act on goal.objective without market mixed")
    other = await harness.submit("other", market="mixed", goal={"max_cost_usd": 5, "objective": "cost"})
    assert other.message == "waits for the next round"


async def test_a_priority_is_changed_while_the_job_goes_on(harness: Harness) -> None:
    agent = await harness.join()
    job = await harness.submit(batch={"global": 64})
    await start(harness, agent)
    answer = await harness.client.patch("/api/v1/jobs/job", json={"priority": 80})
    assert (answer.status_code, answer.json()["spec"]["priority"]) == (200, 80)
    assert (await harness.client.patch("/api/v1/jobs/job", json={"priority": 80})).status_code == 200
    changed = await harness.job()
    assert changed.spec == job.spec.model_copy(update={"priority": 80})
    assert changed.state is JobState.RUNNING
    events = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    assert [one["message"] for one in events if one["kind"] == "priority_changed"] == [
        "priority changed from 50 to 80 by request"
    ]
    for wrong in ({"priority": 101}, {"priority": -1}, {}, {"priority": 1, "run": "x"}):
        assert (await harness.client.patch("/api/v1/jobs/job", json=wrong)).status_code == 422
    await harness.post("jobs/job/cancel", {"force": True})
    refused = await harness.client.patch("/api/v1/jobs/job", json={"priority": 10})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
