"""`StoredObjects`, and what the sweep finds in storage that nobody refers to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState
from service.adapters.postgres.database import Database
from service.adapters.storage import ObjectStorage
from service.api.http.context import new_id
from service.domain.jobs.logs import LogFilter, LogReading
from service.domain.shared.errors import Unavailable
from service.usecases.ports.storage import BundleRecord, Stored
from service.usecases.storage.logs import append_log, log_prefix, read_logs, received_at
from service.usecases.upkeep.retain import retain
from service.usecases.upkeep.sweep import surplus_pieces, sweep
from tests.conformance.conftest import job_of, store
from tests.conformance.test_storage import keys

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=2)
"""Everything that the test has written is older than a day then."""


class Away(ObjectStorage):
    """A store that cannot delete."""

    async def delete_folder(self, prefix: str) -> None:
        raise Unavailable("object storage does not answer")


async def test_folders_and_what_is_in_them(storage: ObjectStorage) -> None:
    for key in ("logs/j2/a", "logs/j10/x/y", "logs/j10/z", "logs/file", "other/j3/a"):
        await storage.put(key, b"four")
    assert [name async for name in storage.folders("logs/")] == ["j10", "j2"]
    assert [name async for name in storage.folders("none/")] == []
    entries = [one async for one in storage.entries("logs/j10/")]
    assert [(one.key, one.size_bytes) for one in entries] == [("logs/j10/x/y", 4), ("logs/j10/z", 4)]
    assert all(abs((one.at - NOW).total_seconds()) < 3600 for one in entries)
    await storage.delete_folder("logs/j10/")
    await storage.delete_folder("logs/none/")
    assert await keys(storage, "logs/") == ["logs/file", "logs/j2/a"]
    assert [name async for name in storage.folders("logs/")] == ["j2"]


async def test_many_at_once_and_some_that_are_gone(storage: ObjectStorage) -> None:
    for number in range(5):
        await storage.put(f"p/{number}", b"")
    await storage.delete_all(["p/1", "p/none", "p/3", "p/4"])
    await storage.delete_all([])
    assert await keys(storage, "p/") == ["p/0", "p/2"]


async def test_uploads_that_were_cut_short_go(folder: Path) -> None:
    local = ObjectStorage(f"file://{folder}")
    await local.put("bundles/whole", b"x")
    (folder / "bundles" / "half#3").write_bytes(b"x")
    assert await local.delete_partial(NOW - timedelta(hours=1)) == 0
    assert await local.delete_partial(LATER) == 1
    assert [path.name for path in (folder / "bundles").iterdir()] == ["whole"]


async def test_what_nobody_refers_to_is_found_and_the_rest_is_left_alone(database: Database) -> None:
    objects = ObjectStorage("memory:///")
    kept, gone, fresh = (new_id("j", at) for at in (NOW, NOW, LATER))
    used, unused = "a" * 64, "b" * 64
    async with database.begin() as tx:
        await store(tx, job_of(kept, name="kept"))
        await tx.bundles.add(BundleRecord(f"sha256:{used}", 1, ()), NOW)
    expected = {
        f"logs/{kept}/1",
        f"checkpoints/{fresh}/1",
        f"bundles/{used}.tar.gz",
        "logs/mine/1",
        "bundles/mine",
    }
    for key in (*expected, f"logs/{gone}/1", f"checkpoints/{gone}/m/n", f"bundles/{unused}.tar.gz"):
        await objects.put(key, b"x")
    young = await sweep(database, objects, keep_days=90, now=NOW)
    assert not young.did_something, "it may be on its way"
    swept = await sweep(database, objects, keep_days=90, now=LATER)
    assert (swept.folders, swept.bundles) == (2, 1)
    assert set(await keys(objects)) == expected


async def test_a_store_that_cannot_delete_holds_up_no_rows_and_is_tidied_later(database: Database) -> None:
    away, there = Away("memory:///"), ObjectStorage("memory:///")
    job_id = new_id("j", NOW)
    async with database.begin() as tx:
        await store(tx, job_of(job_id))
        job = await tx.jobs.lock(job_id)
        await tx.jobs.save(replace(job, state=JobState.FAILED, finished_at=NOW))
    await there.put(f"logs/{job_id}/1", b"x")
    later = NOW + timedelta(days=91)
    gone = await retain(database, away, keep_days=90, now=later)
    assert gone.jobs == 1
    assert gone.problem is not None
    async with database.begin() as tx:
        assert await tx.retention.existing_jobs([job_id]) == set()
    assert (await sweep(database, there, keep_days=90, now=later)).folders == 1
    assert await keys(there) == []


def piece(number: int, size_bytes: int) -> Stored:
    at = NOW + timedelta(seconds=number)
    micros = int(at.timestamp() * 1_000_000)
    return Stored(f"logs/j1/{micros:017d}-00000001-000000-{number:012d}", size_bytes, at)


@given(
    st.lists(st.integers(0, 100), max_size=50), st.integers(0, 60), st.integers(1, 2000), st.integers(1, 60)
)
def test_the_oldest_pieces_go_and_no_more_than_must(
    sizes: list[int], old: int, max_bytes: int, max_pieces: int
) -> None:
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    before = NOW + timedelta(seconds=old - 0.5)
    surplus = surplus_pieces(pieces, before, max_bytes=max_bytes, max_pieces=max_pieces)
    assert surplus == [one.key for one in pieces[: len(surplus)]]
    left = pieces[len(surplus) :]
    assert all(received_at(one.key) >= before for one in left)
    assert sum(one.size_bytes for one in left) <= max_bytes
    assert len(left) <= max_pieces
    if sum(sizes) <= max_bytes and len(sizes) <= max_pieces:
        assert len(surplus) == min(old, len(sizes)), "only what is old"


@pytest.mark.parametrize("rank", [None, 0])
async def test_a_log_whose_beginning_is_gone_says_so(rank: int | None) -> None:
    objects = ObjectStorage("memory:///")
    for number in range(4):
        await append_log(
            objects,
            "j1",
            generation=1,
            rank=0,
            offset=3 * number,
            data=b"%d.\n" % number,
            now=NOW + timedelta(seconds=number),
        )
    pieces = [one.key async for one in objects.entries(log_prefix("j1"))]
    await objects.delete_all(pieces[:2])
    wanted = LogFilter(rank=rank)
    chunks = [chunk async for chunk in read_logs(objects, "j1", LogReading(wanted))]
    assert chunks[0].text.startswith("[headway] The first 6 bytes of what this rank wrote are not kept")
    assert "".join(chunk.text for chunk in chunks).endswith("2.\n3.\n")
    reading = LogReading(wanted, cursor=chunks[0].cursor)
    after = [chunk.text async for chunk in read_logs(objects, "j1", reading)]
    assert after == ["3.\n"], "whoever reads on has been told"
