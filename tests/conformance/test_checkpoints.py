"""The list of a job's checkpoints, over memory, a local folder and S3: what is said to be whole, and what would be restored."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headway.contract.manifest import CheckpointPart, Manifest, Name
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress, JobState, JobView, Reason
from headway.contract.views.stored_files import CheckpointPage
from service.adapters.storage import ObjectStorage
from service.domain.shared.errors import InvalidField, NotFound
from service.usecases.ports.storage import Stored, StoredObjects
from service.usecases.storage.checkpoints import MOST_OBJECTS, list_checkpoints

ROOT = "s3://bucket/checkpoints"
STATE = b"weights"


def job_view(told: int | None = None) -> JobView:
    return JobView(
        id="j1",
        name="digits",
        project="default",
        state=JobState.RUNNING,
        reason=Reason.PROGRESSING,
        message="trains",
        generation=2,
        attempt=1,
        size=1,
        allocation={},
        pinned_size=None,
        progress=JobProgress(checkpoint_samples=told),
        preemptions=0,
        infrastructure_failures=0,
        user_errors=0,
        submitted_at=datetime(2026, 11, 21, tzinfo=UTC),
        started_at=None,
        finished_at=None,
        spec=JobSpec(name="digits", run="python digits.py"),
        present="",
    )


async def save(
    storage: ObjectStorage, name: Name, *, job: str = "j1", samples: int = 0, sealed: bool = True
) -> str:
    """A checkpoint as the library writes one; its folder's key."""
    folder = f"checkpoints/{job}/{name}"
    await storage.put(f"{folder}/0-0.safetensors", STATE)
    if sealed:
        part = CheckpointPart("0-0.safetensors", len(STATE), hashlib.sha256(STATE).hexdigest())
        manifest = Manifest(
            generation=name.generation,
            epoch=name.epoch,
            samples_in_epoch=name.samples,
            samples=samples,
            parts=(part,),
        )
        await storage.put(f"{folder}/manifest.json", manifest.to_text())
    return folder


async def listed(
    storage: StoredObjects, *, told: int | None = None, cursor: str | None = None, limit: int = 100
) -> CheckpointPage:
    return await list_checkpoints(storage, ROOT, job_view(told), cursor=cursor, limit=limit)


async def test_they_are_listed_newest_first(storage: ObjectStorage) -> None:
    await save(storage, Name(1, 0, 500), samples=500)
    await save(storage, Name(2, 1, 24), samples=1024)
    await save(storage, Name(3, 0, 0), job="j2", samples=9)
    await storage.put("checkpoints/j1/tensorboard/events", b"x")
    page = await listed(storage, told=1024)
    newer, older = page.items
    assert (newer.name, newer.generation, newer.epoch) == ("00000002-000001-000000000024", 2, 1)
    assert (newer.samples_in_epoch, newer.samples, newer.complete) == (24, 1024, True)
    assert newer.size_bytes > len(STATE)
    assert newer.saved_at is not None
    assert (older.generation, older.samples) == (1, 500)
    assert [newer.restored_next, older.restored_next] == [True, False]
    assert (page.uri, page.note, page.next_cursor) == (f"{ROOT}/j1", "", None)


async def test_what_is_not_whole_is_not_restored(storage: ObjectStorage) -> None:
    await save(storage, Name(1, 0, 100), samples=100)
    short = await save(storage, Name(1, 0, 200), samples=200)
    await storage.put(f"{short}/0-0.safetensors", STATE[:-1])
    gone = await save(storage, Name(1, 0, 300), samples=300)
    await storage.delete(f"{gone}/0-0.safetensors")
    damaged = await save(storage, Name(1, 0, 400), samples=400)
    await storage.put(f"{damaged}/manifest.json", b"{")
    await save(storage, Name(1, 0, 500), sealed=False)
    items = (await listed(storage, told=400)).items
    assert [(one.samples_in_epoch, one.complete, one.restored_next) for one in items] == [
        (500, False, False),
        (400, False, False),
        (300, False, False),
        (200, False, False),
        (100, True, True),
    ]
    assert [one.problem for one in items] == [
        "it has no manifest: it is being written now, or its save failed",
        "its manifest is damaged",
        "its part 0-0.safetensors is missing",
        "its part 0-0.safetensors has 6 bytes instead of 7",
        "",
    ]


async def test_pages_hold_every_one_once(storage: ObjectStorage) -> None:
    for number in range(7):
        await save(storage, Name(1, 0, number), samples=number, sealed=number < 5)
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await listed(storage, cursor=cursor, limit=2)
        found += page.items
        cursor, pages = page.next_cursor, pages + 1
    assert [one.samples_in_epoch for one in found] == [6, 5, 4, 3, 2, 1, 0]
    assert [one.samples_in_epoch for one in found if one.restored_next] == [4]
    assert pages == 4


@pytest.mark.parametrize("cursor", ["", "x", "00000001", "../00000001-000000-000000000001", "~"])
async def test_a_cursor_of_something_else_is_refused(folder: Path, cursor: str) -> None:
    with pytest.raises(InvalidField, match="start without one"):
        await listed(ObjectStorage(f"file://{folder}"), cursor=cursor)


async def test_an_empty_list_says_why(folder: Path) -> None:
    storage = ObjectStorage(f"file://{folder}")
    assert "No checkpoint was saved" in (await listed(storage)).note
    assert "That folder may be local to the hosts" in (await listed(storage, told=900)).note
    await save(storage, Name(1, 0, 500), samples=500)
    assert "a checkpoint at 900 samples" in (await listed(storage, told=900)).note
    assert (await listed(storage, told=500)).note == ""


class Crowded:
    """Checkpoints of very many parts, of which it counts how many were asked for."""

    def __init__(self) -> None:
        self.given = 0

    async def folders(self, prefix: str) -> AsyncIterator[str]:
        assert prefix == "checkpoints/j1/"
        for number in range(100):
            yield str(Name(1, 0, number))

    async def entries(self, prefix: str) -> AsyncIterator[Stored]:
        for number in range(1_000_000):
            self.given += 1
            yield Stored(f"{prefix}{number:07d}", 1, datetime(2026, 11, 21, tzinfo=UTC))

    async def get(self, key: str) -> bytes:
        raise NotFound(key)


async def test_a_job_with_very_many_objects_holds_no_request_for_long() -> None:
    crowded = Crowded()
    page = await listed(crowded)
    assert page.items
    assert page.next_cursor is not None
    assert crowded.given <= 5 * MOST_OBJECTS
