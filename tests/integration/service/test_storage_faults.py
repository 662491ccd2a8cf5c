"""The running service beside an object store that is away for a while, or whose lists lag behind its objects."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from headway.contract.manifest import Name
from headway.contract.views.stored_files import CheckpointPage
from tests.faulty_store import BUCKET, FaultyStore, faulty_store
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.saving import save
from tests.integration.service.test_life_of_a_job import message

_ANSWERED_WITHIN_S = 20.0
"""Bound on an answer while the store is away: before, a client waited for 40 s and more."""


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with faulty_store() as made:
        yield made


@pytest.fixture
def store(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.away = server.stale = False
    return server


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, store: FaultyStore) -> AsyncIterator[Harness]:
    """A service whose objects are in the store."""
    async with harness_of(make_settings(database_url, redis_url, f"s3://{BUCKET}/one")) as made:
        yield made


def bundle(text: str) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        member = tarfile.TarInfo("train.py")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


async def upload(harness: Harness, data: bytes) -> httpx.Response:
    return await harness.client.post("/api/v1/bundles", content=data)


async def ship(agent: Agent, job_id: str, data: bytes, offset: int) -> httpx.Response:
    path = f"/api/v1/agents/{agent.joined.node_id}/logs/{job_id}/1/0"
    headers = {"Authorization": f"Bearer {agent.joined.node_token}"}
    return await agent.client.post(path, params={"offset": offset}, content=data, headers=headers)


def assert_away(answer: httpx.Response, began_s: float) -> None:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["code"] == "unavailable"
    assert "object storage does not answer" in answer.json()["detail"]
    assert time.monotonic() - began_s < _ANSWERED_WITHIN_S


async def test_store_away_every_request_is_503_within_seconds_and_nothing_acknowledged_is_lost(
    harness: Harness, store: FaultyStore
) -> None:
    agent = await harness.join()
    kept = (await upload(harness, bundle("print(1)"))).json()["digest"]
    job = await harness.submit(bundle=kept)
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="spawn"))
    assert (await ship(agent, job.id, b"one\n", 0)).status_code == 204

    store.away = True
    for _ in range(2):  # an outage outlasts any number of attempts
        for method, path, body in (
            ("POST", "bundles", bundle("print(2)")),
            ("GET", f"bundles/{kept}", None),
            ("GET", "jobs/job/logs", None),
            ("GET", "jobs/job/logs?tail=5", None),
            ("GET", "jobs/job/checkpoints", None),
            ("GET", "jobs/job/output", None),
        ):
            began_s = time.monotonic()
            assert_away(await harness.client.request(method, f"/api/v1/{path}", content=body), began_s)
        began_s = time.monotonic()
        assert_away(await ship(agent, job.id, b"two\n", 4), began_s)
    # Jobs without a folder need no store, nor does a bundle that is known, nor training.
    assert (await upload(harness, bundle("print(1)"))).status_code == 200
    other = await harness.submit("other", bundle=kept)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=1)))
    assert (await harness.client.get("/readyz")).status_code == 200

    store.away = False
    assert (await upload(harness, bundle("print(2)"))).status_code == 201
    assert (await ship(agent, job.id, b"two\n", 4)).status_code == 204
    lines = (await harness.client.get("/api/v1/jobs/job/logs")).json()["items"]
    assert "".join(one["text"] for one in lines) == "one\ntwo\n"
    held = await harness.client.get(f"/api/v1/bundles/{kept}")
    assert f"sha256:{hashlib.sha256(held.content).hexdigest()}" == kept
    assert (await harness.job("other")).id == other.id


async def test_list_lags_behind_a_reported_checkpoint_is_shown_and_given_to_the_next_start(
    harness: Harness, store: FaultyStore
) -> None:
    agent = await harness.join()
    job = await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    assert run.checkpoint_name is None
    await agent.report(entry("ranks_started", run, how="spawn"))
    await save(harness, job.id, Name(1, 0, 8), 8)
    store.remember()
    store.stale = True
    uri = f"s3://{BUCKET}/one/{await save(harness, job.id, Name(1, 0, 16), 16)}"
    said = {"uri": uri, "samples": 16, "size_bytes": 3, "save_s": 0.1, "total_s": 0.1}
    await agent.report(entry("rank_message", run, **message("checkpointed", 1, **said)))

    answer = await harness.client.get("/api/v1/jobs/job/checkpoints")
    page = CheckpointPage.model_validate_json(answer.content)
    assert [(one.samples, one.complete, one.restored_next) for one in page.items] == [
        (16, True, True),
        (8, True, False),
    ]
    assert page.note == ""
    first = await harness.client.get("/api/v1/jobs/job/checkpoints?limit=1")
    rest = await harness.client.get(first.links["next"]["url"])
    assert [one["samples"] for one in rest.json()["items"]] == [8]

    await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))
    await harness.turn()
    again = run_of(await agent.commands())
    assert (again.generation, again.checkpoint_name) == (2, str(Name(1, 0, 16)))

    # Another job starts from it too, from a copy that the list does not show either.
    await harness.post("jobs/job/cancel")
    await agent.report(entry("rank_exited", again, rank=0, signal=9), entry("released", again))
    await harness.submit("next", checkpoint={"from": "job"})
    await harness.turn()
    started = run_of(await agent.commands())
    assert (started.job_name, started.checkpoint_name) == ("next", str(Name(0, 0, 16)))
    (copied,) = (await harness.client.get("/api/v1/jobs/next/checkpoints")).json()["items"]
    assert (copied["samples"], copied["complete"]) == (16, True)


async def test_reported_checkpoint_that_was_deleted_is_not_shown(harness: Harness) -> None:
    agent = await harness.join()
    job = await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    uri = f"s3://{BUCKET}/one/checkpoints/{job.id}/{Name(1, 0, 16)}"
    said = {"uri": uri, "samples": 16, "size_bytes": 3, "save_s": 0.1, "total_s": 0.1}
    await agent.report(entry("rank_message", run, **message("checkpointed", 1, **said)))
    page = (await harness.client.get("/api/v1/jobs/job/checkpoints")).json()
    assert page["items"] == []
    assert "reported a checkpoint at 16 samples" in page["note"]
