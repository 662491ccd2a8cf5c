"""Jobs that have ended continue from their checkpoints."""

from __future__ import annotations

from headway.contract.manifest import Name
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.test_checkpoints import save
from tests.integration.service.test_life_of_a_job import start


async def fail(harness: Harness, agent: Agent, **spec: object) -> str:
    """Submit a job that fails in its first generation, and return its id."""
    job = await harness.submit(**spec)
    run = await start(harness, agent)
    await agent.report(entry("rank_exited", run, rank=0, exit_code=1), entry("released", run))
    assert (await harness.job(job.id)).state is JobState.FAILED
    return job.id


async def test_resume_of_a_failed_job_starts_a_new_generation_with_fresh_retries(harness: Harness) -> None:
    agent = await harness.join()
    job_id = await fail(harness, agent)
    await save(harness, job_id, Name(1, 0, 64), 64)
    answer = await harness.post(f"jobs/{job_id}/resume")
    assert (answer.status_code, answer.json()["state"]) == (202, JobState.PENDING)
    again = await harness.post(f"jobs/{job_id}/resume")
    assert again.json()["message"] == answer.json()["message"]
    job = await harness.job(job_id)
    assert (job.user_errors, job.finished_at, job.reason) == (0, None, Reason.USER_REQUEST)
    events = (await harness.client.get(f"/api/v1/jobs/{job_id}/events")).json()["items"]
    (resumed,) = [one for one in events if one["kind"] == "resume"]
    assert (resumed["data"]["samples"], resumed["data"]["checkpoint"]) == (64, str(Name(1, 0, 64)))
    assert resumed["data"]["by"] in resumed["message"]
    run = await start(harness, agent)
    assert (run.job_id, run.generation, run.restart_count) == (job_id, 2, 1)


async def test_resume_of_a_cancelled_job_continues_it(harness: Harness) -> None:
    job = await harness.submit()
    await harness.post(f"jobs/{job.id}/cancel")
    await save(harness, job.id, Name(1, 0, 64), 64)
    answer = await harness.post(f"jobs/{job.id}/resume")
    assert (answer.status_code, answer.json()["state"]) == (202, JobState.PENDING)


async def test_resume_of_a_failed_job_without_complete_checkpoint_says_what_exists(harness: Harness) -> None:
    job_id = await fail(harness, await harness.join())
    none = await harness.post(f"jobs/{job_id}/resume")
    assert (none.status_code, none.json()["code"]) == (409, "illegal_transition")
    assert "No checkpoint was saved" in none.json()["detail"]
    name = Name(1, 0, 64)
    await harness.service.storage.put(f"checkpoints/{job_id}/{name}/0-0.safetensors", b"part")
    partial = await harness.post(f"jobs/{job_id}/resume")
    assert partial.status_code == 409
    assert str(name) in partial.json()["detail"]
    assert (await harness.job(job_id)).state is JobState.FAILED


async def test_resume_finds_a_complete_checkpoint_behind_newer_incomplete_ones(harness: Harness) -> None:
    job_id = await fail(harness, await harness.join())
    await save(harness, job_id, Name(1, 0, 8), 8)
    for samples in range(9, 20):
        key = f"checkpoints/{job_id}/{Name(1, 0, samples)}/0-0.safetensors"
        await harness.service.storage.put(key, b"part")
    answer = await harness.post(f"jobs/{job_id}/resume")
    assert answer.status_code == 202
    assert "at 8 samples" in answer.json()["message"]


async def test_resume_of_a_failed_job_whose_name_is_taken_is_refused(harness: Harness) -> None:
    job_id = await fail(harness, await harness.join())
    await save(harness, job_id, Name(1, 0, 64), 64)
    other = await harness.submit()
    answer = await harness.post(f"jobs/{job_id}/resume")
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    await harness.post(f"jobs/{other.id}/cancel")
    assert (await harness.post(f"jobs/{job_id}/resume")).status_code == 202
