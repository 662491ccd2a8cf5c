from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.checkpoint import MANIFEST, Checkpoints, Fenced, Name, Schedule, complete, names, surplus
from headway.train.position import Position
from headway.train.storage import Folder, Storage, open_storage


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "kept") if request.param == "folder" else "memory:///")


def writer(storage: Storage, generation: int, keep: int = 10) -> Checkpoints:
    return Checkpoints(storage, generation=generation, keep=keep)


def save(checkpoints: Checkpoints, epoch: int, samples: int, state: bytes = b"state") -> str:
    return checkpoints.save(state, Position(epoch, samples), samples=epoch * 100 + samples)


numbers = st.integers(0, 10**14)
some_names = st.builds(Name, numbers, numbers, numbers)


@given(name=some_names)
def test_a_name_can_be_read_back(name: Name) -> None:
    assert Name.parse(str(name)) == name


def test_what_is_not_a_name_is_none() -> None:
    assert [Name.parse(text) for text in ("", "tmp", "1-2-3", "00000001-000000-00000000000x")] == [None] * 4


@given(
    whole=st.sets(some_names, max_size=8),
    broken=st.sets(some_names, max_size=4),
    generation=numbers,
    keep=st.integers(1, 4),
)
def test_what_may_be_deleted(whole: set[Name], broken: set[Name], generation: int, keep: int) -> None:
    keys = [f"{name}/state-1.pt" for name in whole | broken] + [f"{name}/{MANIFEST}" for name in whole]
    gone = surplus(keys, generation=generation, keep=keep)
    left = complete([key for key in keys if key not in gone])
    ours = sorted(name for name in whole if name.generation <= generation)
    assert [name for name in left if name.generation <= generation] == ours[-keep:]
    assert all(name.generation <= generation for name in names(gone))
    manifests = [key.endswith(MANIFEST) for key in gone]
    assert manifests == sorted(manifests, reverse=True), "manifests go first"


def test_the_newest_is_by_generation_then_position(storage: Storage) -> None:
    save(writer(storage, 1), 5, 0, b"older generation, further on")
    save(writer(storage, 2), 3, 50, b"older")
    save(writer(storage, 2), 4, 0, b"newest")
    found = writer(storage, 3).latest()
    assert found is not None
    assert (found.name, found.state) == (Name(2, 4, 0), b"newest")


def test_no_checkpoint_is_none(storage: Storage) -> None:
    assert writer(storage, 1).latest() is None


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("state", b"newes"),
        ("state", b"newesT"),
        ("state", None),
        ("manifest", b'{"format": 1, "sta'),
        ("manifest", b"[]"),
        ("manifest", b"{}"),
        ("manifest", b'{"format": 99, "state": "s", "size_bytes": 1, "sha256": ""}'),
        ("manifest", b"\xff\xfe"),
        ("manifest", None),
    ],
)
def test_a_damaged_one_is_passed_over(
    storage: Storage, part: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    save(writer(storage, 1), 1, 0, b"before")
    save(writer(storage, 1), 2, 0, b"newest")
    (key,) = (key for key in storage.keys() if key.startswith(f"{Name(1, 2, 0)}/{part}"))  # noqa: SIM118
    if content is None:
        storage.delete(key)
    else:
        storage.put(key, content)
    found = writer(storage, 2).latest()
    assert found is not None
    assert found.state == b"before"
    assert f"{Name(1, 2, 0)} is passed over" in capsys.readouterr().err


def test_writing_one_again_leaves_a_whole_one(storage: Storage) -> None:
    save(writer(storage, 1), 1, 0, b"first")
    save(writer(storage, 1), 1, 0, b"again")
    found = writer(storage, 1).latest()
    assert found is not None
    assert found.state == b"again"


def test_an_older_generation_neither_reads_writes_nor_deletes(storage: Storage) -> None:
    save(writer(storage, 1), 1, 0)
    save(writer(storage, 2), 1, 10)
    before = sorted(storage.keys())
    with pytest.raises(Fenced, match="generation 2 has written"):
        save(writer(storage, 1, keep=1), 1, 20)
    with pytest.raises(Fenced, match="generation 2 has written"):
        writer(storage, 1).latest()
    assert sorted(storage.keys()) == before


def test_only_so_many_are_kept(storage: Storage) -> None:
    for epoch in range(5):
        save(writer(storage, epoch, keep=2), epoch, 0)
    assert complete(storage.keys()) == [Name(3, 3, 0), Name(4, 4, 0)]


def test_the_manifest_says_what_a_person_wants_to_know(tmp_path: Path) -> None:
    uri = save(writer(Folder(tmp_path), 3), 2, 50)
    manifest = json.loads((tmp_path / str(Name(3, 2, 50)) / MANIFEST).read_text())
    assert uri == f"{tmp_path.as_uri()}/{Name(3, 2, 50)}"
    assert {"generation": 3, "epoch": 2, "samples": 250, "size_bytes": 5}.items() <= manifest.items()


class Unreachable(Folder):
    """A folder whose disk is away."""

    def get(self, key: str) -> bytes:
        raise ConnectionError(f"{key}: no answer")


def test_a_storage_that_does_not_answer_is_not_taken_for_damage(tmp_path: Path) -> None:
    save(writer(Folder(tmp_path), 1), 1, 0)
    with pytest.raises(ConnectionError):
        writer(Unreachable(tmp_path), 2).latest()


def test_a_fixed_interval() -> None:
    schedule = Schedule(10.0, now=100.0)
    assert not schedule.due(109.9)
    assert schedule.due(110.0)
    schedule.saved(115.0, cost_s=5.0)
    assert not schedule.due(124.9)
    assert schedule.due(125.0)


@given(cost_s=st.floats(0, 1000))
def test_the_automatic_interval_keeps_the_cost_under_two_percent(cost_s: float) -> None:
    schedule = Schedule(None, now=0.0)
    assert schedule.interval_s == 60.0
    schedule.saved(0.0, cost_s)
    assert schedule.interval_s >= 60.0
    assert cost_s <= 0.02 * schedule.interval_s + 1e-9
