"""Checkpoints that tests store for jobs, as ranks do."""

from __future__ import annotations

import hashlib

from headway.contract.manifest import CheckpointPart, Manifest, Name
from tests.integration.service.conftest import Harness

PART = b"weights"


async def save(harness: Harness, job_id: str, name: Name, samples: int) -> str:
    """Store a complete checkpoint with one part. Return the key of its folder."""
    part = CheckpointPart("0-0.safetensors", len(PART), hashlib.sha256(PART).hexdigest())
    manifest = Manifest(
        generation=name.generation,
        epoch=name.epoch,
        samples_in_epoch=name.samples,
        samples=samples,
        parts=(part,),
    )
    folder = f"checkpoints/{job_id}/{name}"
    await harness.service.storage.put(f"{folder}/{part.key}", PART)
    await harness.service.storage.put(f"{folder}/manifest.json", manifest.to_text())
    return folder
