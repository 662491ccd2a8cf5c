"""Output folders between two nodes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headway.contract.output import HOLE, PART_BYTES
from headway.storage.stores import Data, Folder
from tests.unit.worker_agent.output.conftest import Node
from worker_agent.output.tree import open_tree


def test_everything_comes_over(a: Node, b: Node) -> None:
    a.write("snapshot.pt", "epoch 3").chmod(0o640)
    a.write("logs/run.txt", "lines")
    (a.folder / "empty").mkdir()
    (a.folder / "latest").symlink_to("snapshot.pt")
    saved = a.save(1)
    assert (saved.files, saved.moved_bytes) == (5, 12)
    fetched = b.fetch(2)
    assert (fetched.files, fetched.moved_bytes, fetched.conflicts) == (5, 12, [])
    assert b.files() == {"snapshot.pt": "epoch 3", "logs/run.txt": "lines", "latest": "epoch 3"}
    assert (b.folder / "latest").readlink() == Path("snapshot.pt")
    assert (b.folder / "empty").is_dir()
    before, after = (a.folder / "snapshot.pt").stat(), (b.folder / "snapshot.pt").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_only_what_changed_is_stored(a: Node) -> None:
    a.write("big", "0" * 1000)
    a.write("small", "1")
    assert a.save(1).moved_bytes == 1001
    again = a.save(1)
    assert (again.changed, again.moved_bytes) == (False, 0)
    a.write("small", "22")
    assert (saved := a.save(1)).moved_bytes == 2
    assert saved.size_bytes == 1002


def test_a_long_file_costs_the_part_that_changed(a: Node, b: Node) -> None:
    file = a.folder / "log"
    with file.open("wb") as log:
        log.truncate(2 * PART_BYTES + 5)
    a.save(1)
    with file.open("ab") as log:
        log.write(b"more")
    assert a.save(1).moved_bytes == 9
    b.fetch(2)
    assert (b.folder / "log").read_bytes() == file.read_bytes()


def test_nothing_is_stored_where_nothing_is(a: Node, store: Folder) -> None:
    assert a.fetch(2).index is None
    assert a.save(2).index is None
    assert store.keys() == []


def test_old_parts_go_and_the_last_two_saves_stay(a: Node, store: Folder) -> None:
    for number in range(6):
        a.write("snapshot.pt", f"epoch {number}")
        a.save(1)
    keys = store.keys()
    assert sum(key.startswith("output/manifests/") for key in keys) == 2
    assert sum(key.startswith("output/data/") for key in keys) == 2


def test_a_lost_node_that_saves_late_changes_nothing(a: Node, b: Node) -> None:
    a.write("snapshot.pt", "epoch 1")
    a.save(1)
    b.fetch(2)
    b.write("snapshot.pt", "epoch 2")
    b.save(2)
    a.write("snapshot.pt", "epoch 9, of the past")
    a.save(1)
    assert a.fetch(3).conflicts == []
    assert a.files() == {"snapshot.pt": "epoch 2"}


def test_a_late_save_is_refused_by_the_start_of_a_newer_generation_alone(
    a: Node, b: Node, tmp_path: Path
) -> None:
    a.write("snapshot.pt", "epoch 1")
    a.save(1)
    b.fetch(2)  # and is lost before its first save
    a.write("snapshot.pt", "epoch 9, of the past")
    a.save(1)
    c = Node("c", tmp_path / "c", a.store)
    c.fetch(3)
    assert c.files() == {"snapshot.pt": "epoch 1"}


def test_what_storage_did_not_take_is_saved_before_the_next_start_on_the_node(a: Node, b: Node) -> None:
    a.write("snapshot.pt", "epoch 1")
    a.save(1)
    a.write("snapshot.pt", "epoch 2, never saved")
    a.fetch(2)
    assert a.files() == {"snapshot.pt": "epoch 2, never saved"}
    b.fetch(3)
    assert b.files() == {"snapshot.pt": "epoch 2, never saved"}


def test_a_folder_that_became_too_large_stays_as_it_is_on_its_node(a: Node, b: Node) -> None:
    a.write("snapshot.pt", "1234")
    a.save(1)
    a.write("snapshot.pt", "123456789")
    assert a.save(1, most=8).left_out == ["snapshot.pt (9 B)"]
    a.fetch(2, most=8)
    assert a.files() == {"snapshot.pt": "123456789"}
    assert a.save(2).left_out == []
    b.fetch(3)
    assert b.files() == {"snapshot.pt": "123456789"}


def test_folder_beyond_its_size_keeps_what_is_saved_and_the_smallest_new_files(a: Node, b: Node) -> None:
    a.write("saved", "12345")
    a.save(1)
    a.write("small", "12")
    a.write("large", "123456")
    a.write("larger", "1234567")
    saved = a.save(1, most=8)
    assert saved.left_out == ["larger (7 B)", "large (6 B)"]
    assert "output.max_size" in saved.problem
    b.fetch(2)
    assert b.files() == {"saved": "12345", "small": "12"}


def test_file_beyond_the_size_keeps_its_version_before(a: Node, b: Node) -> None:
    a.write("log", "1234")
    a.write("note", "1")
    a.save(1)
    a.write("log", "1" * 100)
    assert a.save(1, most=50).left_out == ["log (100 B)"]
    b.fetch(2)
    assert b.files() == {"log": "1234", "note": "1"}


def test_sparse_file_is_saved_and_fetched_with_its_holes(a: Node, b: Node) -> None:
    size_bytes, at = 1 << 38, (5 * PART_BYTES) + 7
    with (a.folder / "data.mdb").open("wb") as file:
        file.truncate(size_bytes)
        file.seek(at)
        file.write(b"content")
    saved = a.save(1, most=8 << 20)
    assert saved.left_out == []
    assert saved.size_bytes == PART_BYTES
    assert saved.moved_bytes == 2 * PART_BYTES, "one part with data, and one hole"
    assert b.fetch(2).moved_bytes == PART_BYTES
    copy = b.folder / "data.mdb"
    assert copy.stat().st_size == size_bytes
    assert copy.stat().st_blocks * 512 <= 2 * PART_BYTES
    with copy.open("rb") as file:
        file.seek(at - 1)
        assert file.read(9) == b"\0content\0"
    assert b.save(2).moved_bytes == 0


def test_hard_links_count_and_are_read_once(a: Node, b: Node) -> None:
    big = a.write("weights.bin", "0" * 100_000)
    for number in range(4):
        os.link(big, a.folder / f"epoch-{number}.bin")
    saved = a.save(1, most=150_000)
    assert (saved.left_out, saved.moved_bytes) == ([], 100_000)
    b.fetch(2)
    assert len(b.files()) == 5


def test_part_of_zeros_has_the_digest_of_a_hole() -> None:
    assert hashlib.sha256(bytes(PART_BYTES)).hexdigest() == HOLE


def test_files_removed_elsewhere_are_removed_here(a: Node, b: Node) -> None:
    a.write("keep")
    a.write("old/one")
    a.save(1)
    b.fetch(2)
    (b.folder / "old/one").unlink()
    (b.folder / "old").rmdir()
    b.write("new")
    b.save(2)
    a.fetch(3)
    assert set(a.files()) == {"keep", "new"}
    assert not (a.folder / "old").exists()


def test_two_nodes_of_a_generation_are_merged(a: Node, b: Node) -> None:
    for node in (a, b):
        node.fetch(1)
    a.write("snapshot.pt", "of rank 0")
    a.write("log.txt", "of rank 0")
    b.write("log.txt", "of rank 2")
    b.write("rank-2.txt", "of rank 2")
    a.save(1, rank=0)
    b.save(1, rank=2)
    for node in (a, b):
        outcome = node.fetch(2)
        assert outcome.conflicts == ["log.txt"]
        assert node.files() == {"snapshot.pt": "of rank 0", "log.txt": "of rank 0", "rank-2.txt": "of rank 2"}


def test_a_file_that_is_being_written_waits_for_the_next_save(a: Node, b: Node) -> None:
    a.write("snapshot.pt", "epoch 1")
    a.save(1, last=False)
    a.write("snapshot.pt", "ep", age_s=0)
    assert a.save(1, last=False).busy == ["snapshot.pt"]
    b.fetch(2)
    assert b.files() == {"snapshot.pt": "epoch 1"}


def test_a_log_that_is_never_at_rest_is_saved_every_second_time(a: Node) -> None:
    a.write("log", "line", age_s=0)
    assert a.save(1, last=False).busy == ["log"]
    a.write("log", "line line", age_s=0)
    saved = a.save(1, last=False)
    assert (saved.busy, saved.moved_bytes) == ([], 9)


def test_a_file_that_changes_while_it_is_read_keeps_its_version_before(a: Node, b: Node) -> None:
    file = a.write("snapshot.pt", "epoch 1")
    a.save(1)

    class Slow(Folder):
        """The script goes on writing while its file is stored."""

        def put(self, key: str, data: Data) -> None:
            super().put(key, data)
            if "/data/" in key:
                file.write_text("epoch 2, all of it")

    a.write("snapshot.pt", "epoch 2, ha")
    a.store = Slow(Path(a.store.uri.removeprefix("file://")))
    assert a.save(1).busy == ["snapshot.pt"]
    b.fetch(2)
    assert b.files() == {"snapshot.pt": "epoch 1"}


def test_what_came_with_the_bundle_is_no_output_unless_it_is_changed(a: Node, b: Node) -> None:
    for node in (a, b):
        for name in ("train.py", "config.yaml"):
            stat = node.write(name, "of the bundle").stat()
            node.bundle[name] = (stat.st_size, stat.st_mtime_ns)
    a.write("config.yaml", "changed")
    a.write("snapshot.pt")
    assert a.save(1).files == 2
    b.fetch(2)
    assert b.files() == {"train.py": "of the bundle", "config.yaml": "changed", "snapshot.pt": "x"}


def test_links_lead_nowhere(a: Node, b: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("mine")
    (a.folder / "link").symlink_to(secret)
    (a.folder / "key").symlink_to(secret / "key")
    assert a.save(1).moved_bytes == 0
    a.write("victim/key", "theirs")
    a.save(1)
    (b.folder / "victim").symlink_to(secret)
    b.fetch(2)
    assert (secret / "key").read_text() == "mine"
    assert (b.folder / "victim/key").read_text() == "theirs"


def test_the_folder_itself_may_not_be_a_link(a: Node, tmp_path: Path) -> None:
    (a.folder / "results").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError), open_tree(a.folder, "results"):
        pass
    with pytest.raises(NotADirectoryError), open_tree(a.folder, "results/inner"):
        pass


def test_pipes_and_names_that_are_no_text_are_left_out_and_named(a: Node) -> None:
    os.mkfifo(a.folder / "pipe")
    (Path(os.fsdecode(bytes(a.folder) + b"/\xff"))).write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(a.folder / "sock"))
        a.write("good")
        saved = a.save(1)
    assert (saved.files, len(saved.odd)) == (1, 3)


@pytest.fixture
def owned() -> Iterator[Path]:
    """A folder of a user who is not root, as whom the thread of the test uses files: modes forbid root nothing.

    `os.seteuid` would change every thread of the process, also one that an earlier test has left, and whose files are root's.
    """
    with tempfile.TemporaryDirectory() as name:
        root = os.geteuid() == 0
        library = ctypes.CDLL(None)
        if root:
            os.chown(name, 65_534, -1)
            library.setfsuid(65_534)
        try:
            yield Path(name)
        finally:
            if root:
                library.setfsuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o400], ids=["locked", "without-search"])
def test_a_folder_that_may_not_be_read_keeps_its_version_before_and_costs_nothing_else(
    owned: Path, mode: int
) -> None:
    node = Node("a", owned / "a", Folder(owned / "store"))
    for path in ("locked/inner/kept.txt", "lockedtoo.txt", "gone.txt"):
        node.write(path)
    node.save(1)
    (node.folder / "locked").chmod(mode)
    (node.folder / "gone.txt").unlink()
    node.write("new.txt")
    saved = node.save(1)
    (node.folder / "locked").chmod(0o700)
    assert (saved.odd, saved.problem) == (["locked"], "")
    assert node.index is not None
    kept = ["locked", "locked/inner", "locked/inner/kept.txt", "lockedtoo.txt", "new.txt"]
    assert sorted(node.index.entries) == kept


def test_a_damaged_part_stops_the_start(a: Node, b: Node, store: Folder) -> None:
    a.write("snapshot.pt", "epoch 1")
    a.save(1)
    (part,) = (key for key in store.keys() if "/data/" in key)  # noqa: SIM118  # not a dictionary
    store.put(part, b"epoch 7")
    with pytest.raises(OSError, match="checksum"):
        b.fetch(2)
    assert b.files() == {}


def test_of_a_damaged_manifest_the_one_before_is_taken(a: Node, b: Node, store: Folder) -> None:
    for number in (1, 2):
        a.write("snapshot.pt", f"epoch {number}")
        a.save(1)
    last = max(key for key in store.keys() if "/manifests/" in key)  # noqa: SIM118  # not a dictionary
    store.put(last, b"{")
    b.fetch(2)
    assert b.files() == {"snapshot.pt": "epoch 1"}


def test_storage_does_not_grow_with_the_number_of_moves(a: Node, b: Node, store: Folder) -> None:
    sizes = []
    for generation, node in zip(range(1, 13), alternating(a, b), strict=False):
        node.fetch(generation)
        node.write("snapshot.pt", f"epoch {generation}")
        node.save(generation)
        sizes.append(len(store.keys()))
    assert sizes[-1] == sizes[4]


def alternating(a: Node, b: Node) -> Iterable[Node]:
    while True:
        yield a
        yield b
