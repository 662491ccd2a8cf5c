"""Checkpoints of a job, as the API lists them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headway.contract.manifest import CheckpointPart, Manifest, Name
from headway.contract.views.stored_files import CheckpointPage
from tests.integration.service.conftest import Harness


async def save(harness: Harness, job_id: str, name: Name, samples: int) -> None:
    manifest = Manifest(
        generation=name.generation, epoch=name.epoch, samples_in_epoch=name.samples, samples=samples, parts=()
    )
    await harness.service.storage.put(f"checkpoints/{job_id}/{name}/manifest.json", manifest.to_text())


async def listed(harness: Harness, path: str) -> CheckpointPage:
    response = await harness.client.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.text
    return CheckpointPage.model_validate_json(response.content)


async def test_a_jobs_checkpoints_are_listed(harness: Harness, tmp_path: Path) -> None:
    job = await harness.submit()
    assert "No checkpoint was saved" in (await listed(harness, "jobs/job/checkpoints")).note
    for number in (1, 2, 3):
        await save(harness, job.id, Name(1, 0, number), number)
    page = await listed(harness, "jobs/job/checkpoints?limit=2")
    assert [one.samples for one in page.items] == [3, 2]
    assert [one.restored_next for one in page.items] == [True, False]
    assert page.uri == f"file://{tmp_path}/storage/checkpoints/{job.id}"
    answer = await harness.client.get("/api/v1/jobs/job/checkpoints?limit=2")
    rest = await harness.client.get(answer.links["next"]["url"])
    assert [one["samples"] for one in rest.json()["items"]] == [1]
    assert (await harness.client.get("/api/v1/jobs/job/checkpoints?cursor=x")).json()[
        "code"
    ] == "invalid_field"
    assert (await harness.client.get("/api/v1/jobs/other/checkpoints")).json()["code"] == "not_found"


async def test_storage_that_is_away_is_said(harness: Harness, tmp_path: Path) -> None:
    job = await harness.submit()
    await save(harness, job.id, Name(1, 0, 1), 1)
    (manifest,) = (tmp_path / "storage" / "checkpoints" / job.id).glob("*/manifest.json")
    manifest.unlink()
    manifest.symlink_to(manifest)  # whoever looks at it is led around in a circle
    answer = await harness.client.get(f"/api/v1/jobs/{job.id}/checkpoints")
    assert answer.status_code == 503
    assert answer.json()["code"] == "unavailable"


async def test_a_manifest_that_a_job_wrote_to_harm_is_its_own_damage(
    harness: Harness, tmp_path: Path
) -> None:
    job = await harness.submit()
    for number in (1, 2, 3):
        await save(harness, job.id, Name(1, 0, number), number)
    sparse, nested, pipe = sorted((tmp_path / "storage" / "checkpoints" / job.id).glob("*/manifest.json"))
    os.truncate(sparse, 450 << 20)
    nested.write_text("[" * 200_000)
    pipe.unlink()
    os.mkfifo(pipe)
    page = await listed(harness, "jobs/job/checkpoints")
    assert {one.name: one.complete for one in page.items} == dict.fromkeys(
        [file.parent.name for file in (pipe, nested, sparse)], False
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (CheckpointPart([], 1, "0"),)},  # type: ignore[arg-type]
        {"parts": (CheckpointPart("0-0.safetensors", "many", "0"),)},  # type: ignore[arg-type]
        {"samples": "many"},
        {"samples": 2**70},
    ],
)
async def test_a_manifest_with_values_of_other_types_is_its_own_damage(
    harness: Harness, changes: dict[str, Any]
) -> None:
    job = await harness.submit()
    fields: dict[str, Any] = {"generation": 1, "epoch": 0, "samples_in_epoch": 1, "samples": 1, "parts": ()}
    text = json.dumps({"format": 2, **fields, **changes}, default=asdict)
    contents = json.loads(text)
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    manifest = json.dumps({**contents, "sha256": digest}).encode()
    await harness.service.storage.put(f"checkpoints/{job.id}/{Name(1, 0, 1)}/manifest.json", manifest)
    (shown,) = (await listed(harness, "jobs/job/checkpoints")).items
    assert (shown.complete, shown.problem) == (False, "its manifest is damaged")
