"""One suite for every storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.storage.stores import Folder, ObjectStore, Storage, open_storage


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage((tmp_path / "with space").as_uri())
    return open_storage("memory:///")


def test_what_is_put_can_be_got_listed_replaced_and_deleted(storage: Storage) -> None:
    assert storage.keys() == []
    storage.put("a/state", b"one")
    storage.put("a/manifest", memoryview(b"two"))
    storage.put("a/state", b"three")
    assert storage.get("a/state") == b"three"
    assert sorted(storage.keys()) == ["a/manifest", "a/state"]
    storage.delete("a/state")
    storage.delete("a/state")
    assert storage.keys() == ["a/manifest"]


def test_a_key_that_is_absent_is_a_missing_file(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.get("a/state")


def test_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("a/state", b"one")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["state"]
    folder.delete("a/state")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a folder")
    with pytest.raises(OSError, match="a"):
        Folder(tmp_path).put("a/state", b"one")
    assert (tmp_path / "a").read_text() == "not a folder"


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a folder")
    with pytest.raises(OSError, match="a"):
        Folder(tmp_path / "a").keys()


def test_a_path_will_do_for_a_uri(tmp_path: Path) -> None:
    assert open_storage(str(tmp_path)).uri == tmp_path.as_uri()
    assert isinstance(open_storage("memory:///"), ObjectStore)


def test_what_comes_in_pieces_is_one_object(storage: Storage) -> None:
    pieces = [b"one", memoryview(b"two"), b"", b"x" * 9_000_000]
    storage.put("a/state", iter(pieces))
    assert storage.get("a/state") == b"onetwo" + b"x" * 9_000_000


def test_a_folder_forgets_an_object_that_broke_off(tmp_path: Path) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"one"
        raise OSError("the disk is away")

    with pytest.raises(OSError, match="away"):
        Folder(tmp_path).put("a/state", breaks())
    assert list(tmp_path.iterdir()) == []
