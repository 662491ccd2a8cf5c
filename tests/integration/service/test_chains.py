"""Jobs that start after other jobs, in the running service."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from headway.contract.agents import RunCommand
from headway.contract.output import OutputEntry, OutputManifest
from headway.contract.spec_after import files_prefix
from headway.contract.views.jobs import JobState, JobView, Reason
from service.usecases.ports.facts import WakeUp
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.test_life_of_a_job import start
from tests.integration.service.test_webhooks import scheduling
from tests.waiting import until

PART = b"tokens"


async def refused(harness: Harness, name: str, after: list[Any]) -> dict[str, Any]:
    answer = await harness.post("jobs", {"name": name, "run": "python -V", "after": after})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field"), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def cancel(harness: Harness, name: str) -> None:
    answer = await harness.post(f"jobs/{name}/cancel", {"force": False})
    assert answer.status_code == 202, answer.text


async def end(agent: Agent, run: RunCommand, code: int = 0) -> None:
    ended = entry("rank_exited", run, rank=0, exit_code=code, completed=code == 0)
    await agent.report(ended, entry("released", run))


async def released(harness: Harness) -> int:
    count = await harness.scheduler._releases.start()
    await harness.scheduler._releases.settled()
    return count


async def states(harness: Harness, *names: str) -> list[tuple[JobState, Reason]]:
    jobs = [await harness.job(name) for name in names]
    return [(job.state, job.reason) for job in jobs]


async def test_job_waits_for_its_predecessor_and_holds_no_slot(harness: Harness) -> None:
    agent = await harness.join(slots=4)
    await harness.submit("prep")
    train = await harness.submit("train", after=["prep"])
    assert (train.state, train.reason) == (JobState.PENDING, Reason.AFTER)
    assert "the success of prep" in train.message
    run = await start(harness, agent, "prep")
    async with harness.service.database.begin() as tx:
        snapshot = await tx.rounds.snapshot(harness.clock.now(), {})
    assert {one.name for one in snapshot.jobs.values()} == {"prep"}
    assert len(snapshot.arrivals) == 1
    assert await released(harness) == 0
    assert (await harness.job("train")).present == train.message
    explained = (await harness.client.get("/api/v1/jobs/train/explain")).json()
    assert (explained["action"], explained["reason"]) == ("none", "AFTER")
    forecast = (await harness.client.get("/api/v1/jobs/train/forecast")).json()
    assert forecast["work"]["reason"] == train.message
    page = (await harness.client.get(f"/jobs/{train.id}")).text
    assert "the success of prep" in page
    await end(agent, run)
    assert (await harness.job("prep")).state is JobState.SUCCEEDED
    assert await released(harness) == 1
    await start(harness, agent, "train")
    assert (await harness.job("train")).state is JobState.RUNNING


async def test_failure_cancels_along_the_chain_and_starts_what_waits_for_it(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit("prep")
    await harness.submit("train", after=["prep"])
    await harness.submit("report", after=["train"])
    await harness.submit("tidy", after=[{"job": "report", "on": "ended"}])
    await harness.submit("mend", after=[{"job": "prep", "on": "failed"}])
    run = await start(harness, agent, "prep")
    await end(agent, run, code=1)
    assert (await harness.job("prep")).state is JobState.FAILED
    assert await states(harness, "train", "report") == [(JobState.CANCELLED, Reason.AFTER)] * 2
    train = await harness.job("train")
    assert "prep, which is FAILED (USER_ERROR)" in train.message
    assert "train, which is CANCELLED (AFTER)" in (await harness.job("report")).message
    assert await released(harness) == 2
    assert await states(harness, "tidy", "mend") == [(JobState.PENDING, Reason.SUBMITTED)] * 2


async def test_job_after_two_starts_only_when_both_have_ended(harness: Harness) -> None:
    for name in ("one", "two"):
        await harness.submit(name)
    await harness.submit("join", after=[{"job": name, "on": "ended"} for name in ("one", "two")])
    await cancel(harness, "one")
    assert await released(harness) == 0
    assert "the end of two" in (await harness.job("join")).message
    assert "the end of one" not in (await harness.job("join")).message
    await cancel(harness, "two")
    assert await released(harness) == 1


async def test_two_predecessors_that_end_at_once_release_their_successor(harness: Harness) -> None:
    for number in range(10):
        names = [f"{side}{number}" for side in ("a", "b")]
        for name in names:
            await harness.submit(name)
        await harness.submit(f"join{number}", after=[{"job": name, "on": "ended"} for name in names])
        await asyncio.gather(*(cancel(harness, name) for name in names))
        assert await released(harness) == 1


async def test_waiting_job_can_be_cancelled_paused_and_resumed(harness: Harness) -> None:
    await harness.submit("prep")
    for name in ("gone", "held"):
        await harness.submit(name, after=[{"job": "prep", "on": "ended"}])
    await cancel(harness, "gone")
    assert (await harness.post("jobs/held/pause")).status_code == 202
    await cancel(harness, "prep")
    assert await released(harness) == 1
    assert await states(harness, "gone", "held") == [
        (JobState.CANCELLED, Reason.USER_REQUEST),
        (JobState.PAUSED, Reason.USER_REQUEST),
    ]
    assert (await harness.post("jobs/held/resume")).status_code == 202
    async with harness.service.database.begin() as tx:
        snapshot = await tx.rounds.snapshot(harness.clock.now(), {})
    assert [one.name for one in snapshot.jobs.values()] == ["held"]


async def test_unknown_own_and_repeated_names_are_refused_at_submit(harness: Harness) -> None:
    unknown = await refused(harness, "train", ["prep"])
    assert "'prep'" in unknown["detail"]
    own = await refused(harness, "train", ["train"])
    assert "cannot wait for its own end" in own["detail"]
    prep = await harness.submit("prep")
    twice = await refused(harness, "train", ["prep", prep.id])
    assert "the same job" in twice["detail"]
    await cancel(harness, "prep")
    late = await refused(harness, "train", ["prep"])
    assert "CANCELLED" in late["detail"]
    for job in ("other", "train"):  # a job of another project does not exist for this one
        assert (await harness.post("jobs", {"name": job, "run": "x", "after": ["nobody"]})).status_code == 422


async def test_repeated_submit_returns_its_job_though_its_predecessor_has_failed(harness: Harness) -> None:
    await harness.submit("prep")
    body = {"name": "train", "run": "python -V", "after": ["prep"]}

    async def ask() -> httpx.Response:
        return await harness.client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})

    first = JobView.model_validate_json((await ask()).content)
    await cancel(harness, "prep")
    again = await ask()
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, first.id, "CANCELLED")


async def test_end_wakes_the_release_of_its_successor_which_then_starts(harness: Harness) -> None:
    await harness.join(slots=1)
    await harness.submit("prep", elastic={"min": 2})  # it waits until it is cancelled
    await harness.submit("train", after=[{"job": "prep", "on": "ended"}])
    async with scheduling(harness), harness.service.wake_ups.heard((WakeUp.AFTER, "")) as woken:
        await until(lambda: waits_for_capacity(harness))
        assert not woken.is_set()
        await cancel(harness, "prep")
        await until(woken.is_set)
        await until(lambda: is_(harness, "train", JobState.STARTING))


async def waits_for_capacity(harness: Harness) -> bool:
    return (await harness.client.get("/api/v1/jobs/prep/explain")).json()["action"] == "wait"


async def is_(harness: Harness, name: str, state: JobState) -> bool:
    return (await harness.job(name)).state is state


async def store_output(harness: Harness, job: JobView) -> str:
    """Store an output folder as an agent saves it: parts first, then the manifest. Return the key of its only part."""
    key = f"output/data/0000000001-alpha/{hashlib.sha256(PART).hexdigest()}"
    entry = OutputEntry(version=(1, 0), size_bytes=len(PART), parts=(key,))
    manifest = OutputManifest(
        lineage=1,
        joined=False,
        node="alpha",
        sequence=3,
        saved_at=datetime.now(UTC),
        entries={"data/tokens.bin": entry},
    )
    await harness.service.storage.put(f"checkpoints/{job.id}/{key}", PART)
    await harness.service.storage.put(
        f"checkpoints/{job.id}/{manifest.key}", manifest.model_dump_json().encode()
    )
    return f"checkpoints/{job.id}/{key}"


async def test_files_of_the_predecessor_are_copied_to_its_successor_and_named_in_its_command(
    harness: Harness,
) -> None:
    agent = await harness.join()
    prep = await harness.submit("prep")
    train = await harness.submit("train", after=["prep"])
    await harness.submit("alone", after=[{"job": "prep", "files": False}])
    run = await start(harness, agent, "prep")
    await store_output(harness, prep)
    await end(agent, run)
    assert await released(harness) == 2
    await harness.service.storage.delete_folder(f"checkpoints/{prep.id}/")
    copied = [
        one.key
        async for one in harness.service.storage.entries(f"checkpoints/{train.id}/{files_prefix('prep')}")
    ]
    assert len(copied) == 2
    await harness.turn()
    commands = {one.job_name: one.after for one in await agent.commands() if one.kind == "run"}
    assert commands == {"train": ["prep"], "alone": []}


async def test_job_whose_files_cannot_be_copied_waits_and_says_why_once(harness: Harness) -> None:
    agent = await harness.join()
    prep = await harness.submit("prep")
    train = await harness.submit("train", after=["prep"])
    run = await start(harness, agent, "prep")
    part = await store_output(harness, prep)
    await harness.service.storage.delete(part)
    await end(agent, run)
    for _ in range(2):
        await released(harness)
    told = await harness.job(train.id)
    assert (told.state, told.reason) == (JobState.PENDING, Reason.AFTER)
    assert "files cannot be copied yet" in told.message
    events = (await harness.client.get(f"/api/v1/jobs/{train.id}/events")).json()["items"]
    assert len([one for one in events if one["message"] == told.message]) == 1
    await harness.service.storage.put(part, PART)
    await released(harness)
    assert (await harness.job(train.id)).reason is Reason.SUBMITTED


async def test_predecessor_that_is_waited_for_is_kept_by_retention(harness: Harness) -> None:
    prep = await harness.submit("prep")
    await harness.submit("other")
    await harness.submit("train", after=[{"job": one, "on": "ended"} for one in ("prep", "other")])
    await cancel(harness, "prep")
    harness.clock.skipped += timedelta(days=200)
    await harness.scheduler.retain()
    assert (await harness.job(prep.id)).state is JobState.CANCELLED
    await cancel(harness, "other")
    assert await released(harness) == 1
    await harness.scheduler.retain()
    assert (await harness.client.get(f"/api/v1/jobs/{prep.id}")).status_code == 404
    found = (await harness.client.get("/api/v1/graph?job=train")).json()
    assert {(one["name"], one["state"]) for one in found["jobs"]} >= {("prep", None), ("train", "PENDING")}


async def test_graph_shows_the_whole_chain_from_any_of_its_jobs(harness: Harness) -> None:
    await harness.submit("prep")
    await harness.submit("train", after=["prep"])
    await harness.submit("report", after=[{"job": "train", "on": "ended"}])
    await harness.submit("lonely")
    for path in ("?job=report", "?job=prep", ""):
        found = (await harness.client.get(f"/api/v1/graph{path}")).json()
        assert [one["name"] for one in found["jobs"]] == ["prep", "train", "report"], path
        assert sorted(one["on"] for one in found["edges"]) == ["ended", "succeeded"]
    assert (await harness.client.get("/api/v1/graph?job=nothing")).status_code == 404
