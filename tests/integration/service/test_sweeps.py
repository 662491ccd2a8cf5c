"""Sweeps in the running service: stored at once, compared by a metric, and changed as a group."""

from __future__ import annotations

import asyncio
import csv
import io
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState, Reason
from headway.contract.views.sweeps import SweepView
from service.usecases.upkeep.retain import retain
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.test_life_of_a_job import message, start

GRID = {"lr": [0.1, 0.01], "width": [8, 16]}
LOSS = {"metric": "loss"}


async def view(harness: Harness, sweep: str = "gpt") -> SweepView:
    answer = await harness.client.get(f"/api/v1/sweeps/{sweep}")
    assert answer.status_code == 200, answer.text
    return SweepView.model_validate_json(answer.content)


async def post(harness: Harness, key: str | None = None, **fields: Any) -> Any:
    body = {"name": "gpt", "run": "python -V", "sweep": {"parameters": GRID}, **fields}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await harness.client.post("/api/v1/sweeps", json=body, headers=headers)


async def jobs(harness: Harness) -> list[str]:
    listed = await harness.client.get("/api/v1/jobs")
    return sorted(one["name"] for one in listed.json()["items"])


async def reports_loss(agent: Agent, run: RunCommand, *values: float) -> None:
    for number, value in enumerate(values, start=1):
        told = message("metrics", run.generation, epoch=0, samples=64 * number, values={"loss": value})
        await agent.report(entry("rank_message", run, **told))


async def ends(agent: Agent, run: RunCommand, code: int = 0) -> None:
    ended = entry("rank_exited", run, rank=0, exit_code=code, completed=code == 0)
    await agent.report(ended, entry("released", run))


async def test_submit_stores_every_trial_as_a_job_with_its_parameters(harness: Harness) -> None:
    stored = (await post(harness, parameters={"depth": 4})).json()
    assert await jobs(harness) == ["gpt-1", "gpt-2", "gpt-3", "gpt-4"]
    assert [one["parameters"] for one in stored["trials"]] == [
        {"lr": 0.1, "width": 8},
        {"lr": 0.1, "width": 16},
        {"lr": 0.01, "width": 8},
        {"lr": 0.01, "width": 16},
    ]
    assert stored["states"] == {"PENDING": 4}
    job = await harness.job("gpt-3")
    assert job.spec.parameters == {"depth": 4, "lr": 0.01, "width": 8}
    agent = await harness.join(slots=4)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands() if isinstance(one, RunCommand)}
    assert sorted(runs) == ["gpt-1", "gpt-2", "gpt-3", "gpt-4"]
    shown = {name: value for name, value in runs["gpt-3"].env.items() if name.startswith("HEADWAY_PARAM_")}
    assert shown == {"HEADWAY_PARAM_DEPTH": "4", "HEADWAY_PARAM_LR": "0.01", "HEADWAY_PARAM_WIDTH": "8"}


async def test_refused_trial_leaves_neither_sweep_nor_jobs(harness: Harness) -> None:
    await harness.submit("gpt-3")
    answer = await post(harness)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken"), answer.text
    assert "gpt-3" in answer.json()["detail"]
    assert await jobs(harness) == ["gpt-3"]
    assert (await harness.client.get("/api/v1/sweeps")).json()["items"] == []
    unknown = await post(harness, project="nowhere")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_field"), unknown.text
    assert (await post(harness, sweep={"parameters": {}})).status_code == 422
    assert (await post(harness, resources={"devices": ["a1000"]})).status_code == 422
    assert (await harness.client.get("/api/v1/sweeps")).json()["items"] == []


async def test_repeated_submit_with_a_key_is_one_sweep_also_at_once(harness: Harness) -> None:
    answers = await asyncio.gather(*(post(harness, "k1") for _ in range(4)))
    assert sorted(one.status_code for one in answers) == [200, 200, 200, 201]
    assert len({one.json()["id"] for one in answers}) == 1
    assert len(await jobs(harness)) == 4
    other = await post(harness, "k1", run="python -VV")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")


async def test_best_trial_has_the_best_value_ever_reported(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"lr": [0.1, 0.01, 0.001]}, sweep=LOSS)
    agent = await harness.join(slots=3)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands() if isinstance(one, RunCommand)}
    for run in runs.values():
        await agent.report(entry("ranks_started", run, how="zygote"))
    assert (await view(harness)).best is None
    await reports_loss(agent, runs["gpt-1"], 3.0, 2.0)
    await reports_loss(agent, runs["gpt-2"], 2.5, 0.5, 0.9)
    found = await view(harness)
    assert found.best == 2
    assert [one.value for one in found.trials] == [2.0, 0.5, None]
    assert found.trials[1].metrics == {"loss": 0.9}
    await ends(agent, runs["gpt-2"])
    await ends(agent, runs["gpt-3"], code=1)
    found = await view(harness)
    assert found.states == {JobState.RUNNING: 1, JobState.SUCCEEDED: 1, JobState.FAILED: 1}
    table = await harness.client.get("/api/v1/sweeps/gpt/results")
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [
        (one["trial"], one["state"], one["parameter.lr"], one["best.loss"], one["last.loss"]) for one in rows
    ] == [
        ("1", "RUNNING", "0.1", "2.0", "2.0"),
        ("2", "SUCCEEDED", "0.01", "0.5", "0.9"),
        ("3", "FAILED", "0.001", "", ""),
    ]


async def test_results_guard_texts_that_spreadsheets_would_run_as_formulas(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"x": ["=1+1", "+a", "-b", "@c", "a=b", -1.5, 2]})
    table = await harness.client.get("/api/v1/sweeps/gpt/results")
    cells = [one["parameter.x"] for one in csv.DictReader(io.StringIO(table.text))]
    assert cells == ["'=1+1", "'+a", "'-b", "'@c", "a=b", "-1.5", "2"]


async def test_best_value_outlives_the_thinning_of_its_values(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"lr": [0.1, 0.01]}, sweep={**LOSS, "goal": "maximise"})
    agent = await harness.join(slots=2)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands() if isinstance(one, RunCommand)}
    for run in runs.values():
        await agent.report(entry("ranks_started", run, how="zygote"))
    await reports_loss(agent, runs["gpt-1"], 1.0, 9.0, 2.0)
    harness.clock.skipped += timedelta(days=40)
    database, objects = harness.service.database, harness.service.storage
    await retain(database, objects, keep_days=90, now=harness.clock.now())
    async with harness.service.database.session() as session:
        kept = await session.rows(text("SELECT value FROM metrics"))
    assert [row.value for row in kept] == [1.0]
    found = await view(harness)
    assert (found.best, found.trials[0].value) == (1, 9.0)


async def test_sweep_goes_with_its_last_trial(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"lr": [0.1, 0.01]})
    assert (await harness.post("sweeps/gpt/cancel")).status_code == 202
    harness.clock.skipped += timedelta(days=100)
    database, objects = harness.service.database, harness.service.storage
    done = await retain(database, objects, keep_days=90, now=harness.clock.now())
    assert done.jobs == 2
    assert (await harness.client.get("/api/v1/sweeps/gpt")).status_code == 404
    assert (await harness.client.get("/api/v1/sweeps")).json()["items"] == []


async def test_group_is_paused_resumed_and_cancelled_and_ended_trials_stay(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"lr": [1, 2, 3]})
    agent = await harness.join(slots=1)
    run = await start(harness, agent, "gpt-1")
    await harness.post("jobs/gpt-3/cancel")
    paused = await harness.post("sweeps/gpt/pause")
    assert paused.status_code == 202, paused.text
    assert [one["state"] for one in paused.json()["trials"]] == ["RESIZING", "PAUSED", "CANCELLED"]
    await agent.report(entry("rank_exited", run, rank=0, exit_code=143), entry("released", run))
    assert (await view(harness)).states == {JobState.PAUSED: 2, JobState.CANCELLED: 1}
    resumed = await harness.post("sweeps/gpt/resume")
    assert [one["state"] for one in resumed.json()["trials"]] == ["PENDING", "PENDING", "CANCELLED"]
    again = await harness.post("sweeps/gpt/resume")
    assert again.json()["trials"] == resumed.json()["trials"]
    cancelled = await harness.post("sweeps/gpt/cancel", {"force": True})
    assert cancelled.json()["states"] == {"CANCELLED": 3}
    trial = await harness.job("gpt-2")
    assert (trial.reason, trial.message) == (Reason.USER_REQUEST, "cancelled with its sweep")
    assert (await harness.post("sweeps/gpt/cancel")).status_code == 202
    assert (await harness.post("sweeps/gpt/pause")).json()["states"] == {"CANCELLED": 3}


async def test_priority_changes_for_every_trial_that_has_not_ended(harness: Harness) -> None:
    await harness.submit_sweep("gpt", {"lr": [1, 2, 3]})
    await harness.post("jobs/gpt-2/cancel")
    answer = await harness.client.patch("/api/v1/sweeps/gpt", json={"priority": 90})
    assert answer.status_code == 200, answer.text
    assert [(await harness.job(f"gpt-{n}")).spec.priority for n in (1, 2, 3)] == [90, 50, 90]
    wrong = await harness.client.patch("/api/v1/sweeps/gpt", json={"priority": 101})
    assert wrong.status_code == 422


async def test_quota_of_the_project_holds_for_trials(harness: Harness) -> None:
    await harness.client.put("/api/v1/projects/small", json={"quota": {"slots": 1, "max_slots": 1}})
    await harness.submit_sweep("gpt", {"lr": [1, 2, 3]}, project="small")
    await harness.join(slots=3)
    await harness.turn()
    found = await view(harness)
    assert found.states == {JobState.STARTING: 1, JobState.PENDING: 2}


async def test_trials_wait_for_the_jobs_of_after(harness: Harness) -> None:
    await harness.submit("prep")
    stored = (await post(harness, after=["prep"])).json()
    assert {(one["state"], one["reason"]) for one in stored["trials"]} == {("PENDING", "AFTER")}
    await harness.post("jobs/prep/cancel", {"force": False})
    assert {one.state for one in (await view(harness)).trials} == {JobState.CANCELLED}


async def test_newest_sweep_of_a_name_is_meant_and_pages_go_on(harness: Harness) -> None:
    first = await harness.submit_sweep("gpt", {"lr": [1]})
    await harness.post("sweeps/gpt/cancel")
    second = await harness.submit_sweep("gpt", {"lr": [1]})
    assert (await view(harness)).id == second.id
    assert (await view(harness, first.id)).states == {JobState.CANCELLED: 1}
    page = (await harness.client.get("/api/v1/sweeps?limit=1")).json()
    assert [one["id"] for one in page["items"]] == [second.id]
    rest = (await harness.client.get(f"/api/v1/sweeps?limit=1&cursor={page['next_cursor']}")).json()
    assert [one["id"] for one in rest["items"]] == [first.id]
    assert rest["next_cursor"] is None
    missing = await harness.client.get("/api/v1/sweeps/gtp")
    assert missing.status_code == 404
    assert "did you mean gpt?" in missing.json()["detail"]


async def test_audit_names_the_sweep_and_its_project(harness: Harness) -> None:
    await harness.client.put("/api/v1/projects/small", json={})
    await harness.submit_sweep("gpt", {"lr": [1, 2]}, project="small")
    await harness.post("sweeps/gpt/pause")
    entries = (await harness.client.get("/api/v1/audit")).json()["items"]
    found = [(one["action"], one["target"], one["project"]) for one in entries if "sweep" in one["action"]]
    assert found == [
        ("pause_sweep", "/api/v1/sweeps/gpt/pause", "small"),
        ("submit_sweep", "/api/v1/sweeps", "small"),
    ]


async def test_largest_sweep_is_stored_and_cancelled_in_one_request_each(harness: Harness) -> None:
    sweep = {"search": "random", "trials": 500}
    stored = await harness.submit_sweep("gpt", {"lr": {"min": 1e-5, "max": 1.0, "log": True}}, sweep=sweep)
    assert len({one.parameters["lr"] for one in stored.trials}) == 500
    cancelled = await harness.post("sweeps/gpt/cancel")
    assert cancelled.json()["states"] == {"CANCELLED": 500}
