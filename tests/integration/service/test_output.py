"""Output folders, as agents report them and the API shows them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest

from headway.contract.output import HOLE, PART_BYTES, OutputEntry, OutputManifest, data_prefix
from headway.contract.views.jobs import JobState
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_life_of_a_job import start

_AT = datetime(2026, 1, 1, tzinfo=UTC)


async def save(harness: Harness, job_id: str, lineage: int, node: str = "a", **files: bytes) -> None:
    """Store a manifest and its parts, as an agent's child does."""
    entries = {}
    for name, data in files.items():
        key = f"{data_prefix(lineage, node)}{hashlib.sha256(data).hexdigest()}"
        await harness.service.storage.put(f"checkpoints/{job_id}/{key}", data)
        entries[name] = OutputEntry(version=(lineage, 0), size_bytes=len(data), parts=(key,))
    manifest = OutputManifest(
        lineage=lineage, joined=False, node=node, sequence=1, saved_at=_AT, entries=entries
    )
    text = manifest.model_dump_json().encode()
    await harness.service.storage.put(f"checkpoints/{job_id}/{manifest.key}", text)


async def listed(harness: Harness, query: str = "") -> dict[str, Any]:
    response = await harness.client.get(f"/api/v1/jobs/job/output{query}")
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_files_are_listed_and_downloaded(harness: Harness) -> None:
    job = await harness.submit()
    assert "No output of job is saved" in (await listed(harness))["note"]
    await save(harness, job.id, 1, old=b"of the first start")
    await save(harness, job.id, 2, b=b"two", a=b"one", c=b"three")
    page = await listed(harness, "?limit=2")
    assert [(one["path"], one["size_bytes"]) for one in page["items"]] == [("a", 3), ("b", 3)]
    rest = await listed(harness, f"?cursor={page['next_cursor']}")
    assert [one["path"] for one in rest["items"]] == ["c"]
    part = await harness.client.get("/api/v1/jobs/job/output/part", params={"path": "c", "part": 0})
    assert part.content == b"three"
    for wanted in ({"path": "old"}, {"path": "c", "part": 1}, {"path": "../../../etc/passwd"}):
        answer = await harness.client.get("/api/v1/jobs/job/output/part", params=wanted)
        assert answer.json()["code"] == "not_found"


async def test_holes_of_a_sparse_file_are_listed_as_ranges_of_parts(harness: Harness) -> None:
    job = await harness.submit()
    prefix = data_prefix(1, "a")
    data, hole = (f"{prefix}{digest}" for digest in (hashlib.sha256(b"one").hexdigest(), HOLE))
    sparse = OutputEntry(version=(1, 0), size_bytes=5 * PART_BYTES, parts=(hole, hole, data, hole, data))
    manifest = OutputManifest(
        lineage=1, joined=False, node="a", sequence=1, saved_at=_AT, entries={"sparse": sparse}
    )
    text = manifest.model_dump_json().encode()
    await harness.service.storage.put(f"checkpoints/{job.id}/{manifest.key}", text)
    (one,) = (await listed(harness))["items"]
    assert (one["parts"], one["holes"]) == (5, [[0, 2], [3, 4]])


async def test_a_part_that_was_replaced_is_refused(harness: Harness) -> None:
    job = await harness.submit()
    await save(harness, job.id, 1, a=b"one")
    key = f"checkpoints/{job.id}/{data_prefix(1, 'a')}{hashlib.sha256(b'one').hexdigest()}"
    await harness.service.storage.put(key, b"two")
    answer = await harness.client.get("/api/v1/jobs/job/output/part", params={"path": "a"})
    assert answer.json()["code"] == "not_found"


async def test_news_of_the_folder_are_events_and_a_lost_save_is_in_the_last_message(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await agent.report(
        entry("output", run, what="elsewhere", paths=["model.pt"], files=1),
        entry("output", run, what="lost", message="The disk is full."),
        entry("rank_exited", run, rank=0, exit_code=0),
        entry("released", run),
    )
    done = await harness.job()
    assert done.state is JobState.SUCCEEDED
    first, *rest = done.message.splitlines()
    assert first.endswith("The disk is full.")
    assert rest, "why the job ended"
    found = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    kinds = [one["kind"] for one in found]
    assert kinds.index("output_elsewhere") < kinds.index("output_lost") < kinds.index("succeed")


@pytest.mark.parametrize("what", ["failed", "lost"])
async def test_listing_after_a_failed_save_says_why_no_file_is_there(harness: Harness, what: str) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await agent.report(entry("output", run, what=what, message="The disk is full."))
    note = (await listed(harness))["note"]
    assert note.startswith("No file is saved: ")
    assert "The disk is full." in note
    assert "has written nothing" not in note
    await agent.report(entry("output", run, what="saved", files=0))
    assert "has written nothing" in (await listed(harness))["note"]


async def test_a_path_with_a_line_end_stays_on_the_line_of_its_event(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await agent.report(entry("output", run, what="elsewhere", paths=["a\nb\u202e"], files=1))
    found = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    message = next(one["message"] for one in found if one["kind"] == "output_elsewhere")
    assert r"a\nb\u202e" in message


async def test_a_save_after_the_lost_one_is_the_end_of_the_warning(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await agent.report(
        entry("output", run, what="lost", message="The disk is full."),
        entry("output", run, what="saved", files=1),
        entry("rank_exited", run, rank=0, exit_code=0),
        entry("released", run),
    )
    assert "The disk is full." not in (await harness.job()).message


async def test_a_node_speaks_of_runs_that_it_holds_alone(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    other = await harness.join("beta")
    await other.report(entry("output", run, what="lost", message="hostile"))
    found = (await harness.client.get("/api/v1/jobs/job/events")).json()["items"]
    assert not any(one["kind"].startswith("output") for one in found)
