"""New jobs start from checkpoints of other jobs of their project."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headway.contract.manifest import Name
from headway.contract.views.jobs import JobView
from headway.contract.views.stored_files import CheckpointPage
from tests.integration.service.conftest import Harness
from tests.integration.service.saving import PART, save


async def ask(harness: Harness, start: str, name: str = "new", key: str | None = None) -> httpx.Response:
    body = {"name": name, "run": "python -V", "checkpoint": {"from": start}}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await harness.client.post("/api/v1/jobs", json=body, headers=headers)


async def checkpoints(harness: Harness, job: str) -> CheckpointPage:
    response = await harness.client.get(f"/api/v1/jobs/{job}/checkpoints")
    return CheckpointPage.model_validate_json(response.content)


def folders(tmp_path: Path) -> set[str]:
    return {one.name for one in (tmp_path / "storage" / "checkpoints").iterdir()}


async def refusal(harness: Harness, start: str) -> str:
    answer = await ask(harness, start)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field"), answer.text
    return str(answer.json()["detail"])


async def test_submit_from_a_job_copies_its_newest_complete_checkpoint(harness: Harness) -> None:
    old = await harness.submit("old")
    await save(harness, old.id, Name(2, 1, 8), 40)
    await harness.service.storage.put(f"checkpoints/{old.id}/{Name(3, 1, 9)}/0-0.safetensors", PART)
    answer = await ask(harness, "old")
    assert answer.status_code == 201, answer.text
    job = JobView.model_validate_json(answer.content)
    origin = job.progress.started_from
    assert origin is not None
    assert (origin.job_id, origin.job, origin.checkpoint) == (old.id, "old", str(Name(2, 1, 8)))
    assert (origin.samples, job.progress.checkpoint_samples) == (40, 40)
    assert origin.text in job.message
    await harness.service.storage.delete_folder(f"checkpoints/{old.id}/")
    (copy,) = (await checkpoints(harness, job.id)).items
    assert (copy.name, copy.samples, copy.complete, copy.restored_next) == (
        str(Name(0, 1, 8)),
        40,
        True,
        True,
    )
    page = await harness.client.get(f"/jobs/{job.id}")
    assert page.status_code == 200
    assert "Started from" in page.text
    assert origin.checkpoint in page.text
    stored = await harness.job(job.id)
    assert stored.spec.checkpoint.from_ == "old"


async def test_submit_from_a_named_checkpoint_of_an_ended_job_copies_that_one(harness: Harness) -> None:
    old = await harness.submit("old")
    await harness.post(f"jobs/{old.id}/cancel")
    for samples in (8, 16):
        await save(harness, old.id, Name(1, 0, samples), samples)
    answer = await ask(harness, f"{old.id}@{Name(1, 0, 8)}")
    assert answer.json()["progress"]["started_from"]["samples"] == 8


async def test_submit_from_what_does_not_exist_names_what_does(harness: Harness, tmp_path: Path) -> None:
    old = await harness.submit("old")
    assert "did you mean old" in await refusal(harness, "odl")
    assert "no complete checkpoint" in await refusal(harness, "old")
    await save(harness, old.id, Name(1, 0, 8), 8)
    assert str(Name(1, 0, 8)) in await refusal(harness, f"old@{Name(1, 0, 9)}")
    half = Name(1, 0, 10)
    await harness.service.storage.put(f"checkpoints/{old.id}/{half}/0-0.safetensors", PART)
    said = await refusal(harness, f"old@{half}")
    assert "manifest" in said
    assert str(Name(1, 0, 8)) in said
    assert folders(tmp_path) == {old.id}


async def test_submit_from_a_job_of_another_project_names_the_project(harness: Harness) -> None:
    (await harness.client.put("/api/v1/projects/azure", json={})).raise_for_status()
    old = await harness.submit("old", project="azure")
    await save(harness, old.id, Name(1, 0, 8), 8)
    assert "azure" in await refusal(harness, old.id)


async def test_submit_repeated_with_its_key_leaves_one_copy(harness: Harness, tmp_path: Path) -> None:
    old = await harness.submit("old")
    await save(harness, old.id, Name(1, 0, 8), 8)
    first = await ask(harness, "old", key="k")
    again = await ask(harness, "old", key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert folders(tmp_path) == {old.id, first.json()["id"]}


async def test_submit_repeated_with_its_key_returns_its_job_after_the_checkpoint_is_gone(
    harness: Harness,
) -> None:
    old = await harness.submit("old")
    await save(harness, old.id, Name(1, 0, 8), 8)
    first = await ask(harness, "old", key="k")
    await harness.service.storage.delete_folder(f"checkpoints/{old.id}/")
    again = await ask(harness, "old", key="k")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"]), again.text
    other = await ask(harness, "old", name="other", key="k")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict"), other.text


async def test_submit_that_is_refused_leaves_no_copy(harness: Harness, tmp_path: Path) -> None:
    old = await harness.submit("old")
    await save(harness, old.id, Name(1, 0, 8), 8)
    answer = await ask(harness, "old", name="old")
    assert answer.json()["code"] == "name_taken"
    assert folders(tmp_path) == {old.id}


@pytest.mark.parametrize("of_folder", [False, True])
async def test_submit_from_a_checkpoint_of_links_copies_nothing_else(
    harness: Harness, tmp_path: Path, *, of_folder: bool
) -> None:
    old = await harness.submit("old")
    await save(harness, old.id, Name(1, 0, 8), 8)
    folder = tmp_path / "storage" / "checkpoints" / old.id / str(Name(1, 0, 8))
    if of_folder:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").write_bytes(PART)
        (folder / "0-0.safetensors").unlink()
        (folder / "0-0.safetensors").symlink_to(tmp_path / "elsewhere")
    answer = await ask(harness, "old")
    assert answer.status_code == 503, answer.text
    assert folders(tmp_path) == {old.id}


async def test_submit_from_a_malformed_name_is_refused(harness: Harness) -> None:
    answer = await ask(harness, "old@../secrets")
    assert answer.status_code == 422
