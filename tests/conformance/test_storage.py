"""`Storage` over memory, a local folder and S3: one behaviour."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headway.contract.runtime import STORAGE_AWAY
from headway.storage.stores import is_away
from service.adapters.storage import ObjectStorage
from service.domain.shared.errors import NotFound, Unavailable
from service.usecases.ports.storage import StoredObjects
from tests.conformance.conftest import BUCKET
from tests.faulty_store import BUCKET as FAULTY
from tests.faulty_store import faulty_store


async def keys(storage: StoredObjects, prefix: str = "", after: str | None = None) -> list[str]:
    return [one.key async for one in storage.entries(prefix, after=after)]


async def test_what_was_put_is_got(storage: StoredObjects) -> None:
    await storage.put("logs/j1/a", b"one")
    assert await storage.get("logs/j1/a") == b"one"
    await storage.put("logs/j1/a", b"two")
    assert await storage.get("logs/j1/a") == b"two"


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 7, bytes(range(256)) * 4096])
async def test_bytes_of_any_kind_and_size(storage: StoredObjects, data: bytes) -> None:
    await storage.put("k", data)
    assert await storage.get("k") == data


async def test_a_large_object(storage: StoredObjects) -> None:
    data = bytes(range(256)) * (24 << 12)  # 24 MiB: over the limit from which clients upload in parts
    await storage.put("bundles/large.tar.gz", data)
    assert await storage.get("bundles/large.tar.gz") == data


async def test_copy_is_an_object_of_its_own(storage: StoredObjects) -> None:
    await storage.put("a/1", b"one")
    await storage.copy("a/1", "b/2")
    await storage.put("a/1", b"two")
    await storage.delete("a/1")
    assert await storage.get("b/2") == b"one"
    with pytest.raises(NotFound):
        await storage.copy("a/1", "b/3")
    assert await keys(storage, "b/") == ["b/2"]


async def test_what_is_not_there(storage: StoredObjects) -> None:
    with pytest.raises(NotFound, match="nothing/here"):
        await storage.get("nothing/here")
    await storage.delete("nothing/here")
    assert await keys(storage, "nothing/") == []


async def test_a_deleted_object_is_gone_and_others_stay(storage: StoredObjects) -> None:
    await storage.put("a/1", b"x")
    await storage.put("a/2", b"x")
    await storage.delete("a/1")
    await storage.delete("a/1")
    assert await keys(storage, "a/") == ["a/2"]
    with pytest.raises(NotFound):
        await storage.get("a/1")


async def test_listing_is_in_the_order_of_keys(storage: StoredObjects) -> None:
    names = ["b/2", "b/10", "b/1", "b/-1", "b/a", "b/B", "b/1-1", "b/1x/y"]
    await asyncio.gather(*(storage.put(name, b"") for name in names))
    assert await keys(storage, "b/") == sorted(names)


async def test_listing_keeps_to_its_prefix(storage: StoredObjects) -> None:
    for name in ("logs/j1/a", "logs/j10/a", "logs/j1/b/c", "other"):
        await storage.put(name, b"")
    assert await keys(storage, "logs/j1/") == ["logs/j1/a", "logs/j1/b/c"]
    assert await keys(storage) == ["logs/j1/a", "logs/j1/b/c", "logs/j10/a", "other"]


async def test_listing_after_a_key(storage: StoredObjects) -> None:
    names = [f"p/{number:03}" for number in range(5)]
    for name in names:
        await storage.put(name, b"")
    assert await keys(storage, "p/", after="p/002") == ["p/003", "p/004"]
    assert await keys(storage, "p/", after="p/0021") == ["p/003", "p/004"], (
        "a key that is gone is a cursor too"
    )
    assert await keys(storage, "p/", after="p/004") == []


@pytest.mark.slow
async def test_a_listing_of_many_pages_is_complete_and_in_order(storage: StoredObjects) -> None:
    names = [f"many/{number:05}" for number in range(1100)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(storage.put(name, b"") for name in names[start : start + 50]))
    assert await keys(storage, "many/") == names


@pytest.mark.parametrize(
    "name",
    [
        "o/with space",
        "o/ünïcode-日本",
        "o/a%20b",
        "o/a+b&c=d",
        "o/x#y",
        "o/.hidden",
        "o/~",
        "o/a:b*?",
        "o/[x]",
    ],
)
async def test_odd_names(storage: StoredObjects, name: str) -> None:
    await storage.put(name, b"odd")
    assert await storage.get(name) == b"odd"
    assert await keys(storage, "o/") == [name]
    await storage.delete(name)
    assert await keys(storage, "o/") == []


async def test_a_reader_never_sees_half_an_object(storage: StoredObjects) -> None:
    """Logs are listed and read while they are written."""
    data = b"x" * (1 << 20)

    async def write() -> None:
        for number in range(20):
            await storage.put(f"logs/j/{number:03}", data)

    writing = asyncio.create_task(write())
    seen = 0
    while not writing.done():
        for key in await keys(storage, "logs/j/"):
            assert key.removeprefix("logs/j/").isdigit()
            assert len(await storage.get(key)) == len(data)
            seen += 1
    await writing
    assert seen


async def test_what_is_half_written_is_not_listed(folder: Path) -> None:
    """A put to a folder writes beside the object first, under its name and a number."""
    storage = ObjectStorage(f"file://{folder}")
    await storage.put("logs/j/001", b"x")
    (folder / "logs" / "j" / "002#1").write_bytes(b"half")
    assert await keys(storage, "logs/j/") == ["logs/j/001"]


@pytest.mark.parametrize("operation", ["put", "get", "list", "delete"])
async def test_a_store_that_does_not_answer_is_unavailable(
    operation: str, s3_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    storage = ObjectStorage(f"s3://{BUCKET}/x")
    doing = {
        "put": lambda: storage.put("k", b""),
        "get": lambda: storage.get("k"),
        "list": lambda: keys(storage),
        "delete": lambda: storage.delete("k"),
    }[operation]
    with pytest.raises(Unavailable, match="object storage does not answer"):
        await asyncio.wait_for(doing(), 60)


@pytest.mark.parametrize("operation", ["put", "delete"])
async def test_a_folder_that_cannot_be_written_is_unavailable(operation: str, folder: Path) -> None:
    storage = ObjectStorage(f"file://{folder}")
    await storage.put("logs/j/1", b"x")
    (folder / "file").write_bytes(b"")
    doing = {"put": lambda: storage.put("file/k", b""), "delete": lambda: storage.delete("logs/j")}[operation]
    with pytest.raises(Unavailable):
        await doing()


async def test_a_bucket_that_does_not_exist_is_unavailable_to_writers(s3_environment: None) -> None:
    with pytest.raises(Unavailable):
        await ObjectStorage("s3://no-such-bucket/x").put("k", b"")


async def test_a_folder_is_made_where_it_is_missing(folder: Path) -> None:
    await ObjectStorage(f"file://{folder}/deep/er").put("k", b"x")
    assert (folder / "deep" / "er" / "k").read_bytes() == b"x"


async def test_wrong_bucket_is_refused_and_silent_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with faulty_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Unavailable, match=r"object storage refuses .* 404"):
            await keys(ObjectStorage("s3://no-such-bucket/one"))
        store.away = True
        with pytest.raises(Unavailable, match=rf"{STORAGE_AWAY} .* 503"):
            await ObjectStorage(f"s3://{FAULTY}/one").get("k")
    with pytest.raises(Unavailable, match=STORAGE_AWAY):  # the server has ended: connections are refused
        await ObjectStorage(f"s3://{FAULTY}/one").get("k")


@pytest.mark.parametrize(
    ("status", "away"), [(0, True), (403, False), (404, False), (429, True), (503, True)]
)
def test_error_text_of_a_store_says_whether_it_was_away(status: int, *, away: bool) -> None:
    text = f"non-2xx status code: {status} x" if status else "HTTP error: error sending request"
    assert is_away(f"Generic S3 error: {text}") is away
