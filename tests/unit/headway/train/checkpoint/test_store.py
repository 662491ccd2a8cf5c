"""Checkpoints of replicated states, in a folder and in an object store."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.contract.manifest import CheckpointPart, Manifest, Name, complete
from headway.storage.stores import Data, Folder, Storage, open_storage
from headway.train.checkpoint import sharded
from headway.train.checkpoint.store import Checkpoints, Failed, Fenced, Saved
from headway.train.data.position import Position

Open = Callable[..., Checkpoints]


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "kept") if request.param == "folder" else "memory:///")


@pytest.fixture
def writer() -> Iterator[Open]:
    """Opens checkpoints, and waits in the end for what was begun."""
    opened: list[Checkpoints] = []

    def make(storage: Storage, generation: int, keep: int = 10) -> Checkpoints:
        opened.append(Checkpoints(storage, generation=generation, keep=keep))
        return opened[-1]

    yield make
    for one in opened:
        one._worker.shutdown()


def state(value: float) -> dict[str, Any]:
    return {"weights": torch.full((5,), value), "steps": 3}


def save(checkpoints: Checkpoints, epoch: int, samples: int, value: float = 0.0) -> Saved | Failed | None:
    assert checkpoints.begin(state(value), Position(epoch, samples), samples=epoch * 100 + samples)
    return checkpoints.wait()


def value_of(checkpoints: Checkpoints) -> float:
    found = checkpoints.read()
    assert found is not None
    assert found.state["steps"] == 3
    assert set(found.state["weights"].tolist()) == {found.state["weights"][0].item()}
    return float(found.state["weights"][0])


def test_the_newest_is_by_generation_then_position(storage: Storage, writer: Open) -> None:
    save(writer(storage, 1), 5, 0, 1.0)
    save(writer(storage, 2), 3, 50, 2.0)
    done = save(writer(storage, 2), 4, 0, 3.0)
    assert isinstance(done, Saved)
    assert (done.uri, done.samples) == (f"{storage.uri}/{Name(2, 4, 0)}", 400)
    assert 0 < done.save_s <= done.total_s
    found = writer(storage, 3).read()
    assert found is not None
    assert found.name == Name(2, 4, 0)
    assert value_of(writer(storage, 3)) == 3.0


def test_no_checkpoint_is_none(storage: Storage, writer: Open) -> None:
    assert writer(storage, 1).read() is None
    assert writer(storage, 1).poll() is None
    assert writer(storage, 1).wait() is None


@pytest.mark.parametrize("part", ["0-0.safetensors", "index.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "longer", "changed"])
def test_a_damaged_one_is_passed_over(
    storage: Storage, writer: Open, part: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(writer(storage, 1), 1, 0, 1.0)
    save(writer(storage, 1), 2, 0, 2.0)
    key = f"{Name(1, 2, 0)}/{part}"
    whole = storage.get(key)
    middle = len(whole) // 2
    match damage:
        case "gone":
            storage.delete(key)
        case "empty":
            storage.put(key, b"")
        case "cut":
            storage.put(key, whole[:middle])
        case "longer":
            storage.put(key, whole + b"x")
        case "changed":
            storage.put(key, whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert value_of(writer(storage, 2)) == 1.0
    assert f"{Name(1, 2, 0)} is skipped" in capsys.readouterr().err


def save_unreadable(storage: Storage, name: Name) -> None:
    """Store a complete checkpoint as older libraries did, with a learning rate that is a number of numpy."""
    tree = io.BytesIO()
    torch.save(("value", {"lr": np.float64(0.1)}), tree)

    def seal(stored: list[CheckpointPart]) -> None:
        manifest = Manifest(
            generation=name.generation,
            epoch=name.epoch,
            samples_in_epoch=name.samples,
            samples=9,
            parts=tuple(stored),
        )
        storage.put(f"{name}/manifest.json", manifest.to_text())

    contents = sharded.Contents({}, {}, {sharded.tree_name(0): tree.getvalue()})
    sharded.write(storage, str(name), contents, seal=seal, group=None)


def test_an_unreadable_one_is_passed_over_for_the_one_before(
    storage: Storage, writer: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    save(writer(storage, 1), 1, 0, 1.0)
    save_unreadable(storage, Name(1, 2, 0))
    assert value_of(writer(storage, 2)) == 1.0
    assert f"{Name(1, 2, 0)} is skipped: a state holds an object" in capsys.readouterr().err


def test_a_job_with_only_unreadable_ones_does_not_start_anew(storage: Storage, writer: Open) -> None:
    save_unreadable(storage, Name(1, 2, 0))
    with pytest.raises(TypeError, match="only be read back by running code"):
        writer(storage, 2).read()


def test_one_at_the_same_place_is_written_beside(storage: Storage, writer: Open) -> None:
    save(writer(storage, 1), 1, 0, 1.0)
    save(writer(storage, 1), 1, 0, 2.0)
    assert complete(storage.keys()) == [Name(1, 1, 0), Name(1, 1, 0, 1)]
    assert value_of(writer(storage, 1)) == 2.0


def test_an_older_generation_neither_reads_writes_nor_deletes(storage: Storage, writer: Open) -> None:
    save(writer(storage, 1), 1, 0)
    save(writer(storage, 2), 1, 10)
    before = sorted(storage.keys())
    with pytest.raises(Fenced, match="generation 2 has written"):
        save(writer(storage, 1, keep=1), 1, 20)
    with pytest.raises(Fenced, match="generation 2 has written"):
        writer(storage, 1).read()
    assert sorted(storage.keys()) == before


def test_only_so_many_are_kept(storage: Storage, writer: Open) -> None:
    storage.put(f"{Name(0, 0, 7)}/0-0.safetensors", b"of a writer that was killed")
    for epoch in range(5):
        save(writer(storage, epoch, keep=2), epoch, 0)
    assert {key.partition("/")[0] for key in storage.keys()} == {str(Name(3, 3, 0)), str(Name(4, 4, 0))}  # noqa: SIM118


def test_a_large_state_is_divided_and_complete(storage: Storage, writer: Open) -> None:
    large = {f"layer {number}": torch.full((3_000_000,), float(number)) for number in range(25)}
    large["bits"] = torch.tensor([True, False, True])
    checkpoints = writer(storage, 1)
    checkpoints.begin(large, Position(1, 0), samples=1)
    done = checkpoints.wait()
    assert isinstance(done, Saved)
    assert done.size_bytes > 300_000_000
    assert len([key for key in storage.keys() if key.endswith("safetensors")]) == 2  # noqa: SIM118
    found = checkpoints.read()
    assert found is not None
    for name, tensor in large.items():
        assert torch.equal(found.state[name], tensor)


class Gate(Folder):
    """A folder that is slow: each object waits until it may be written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)

    def put(self, key: str, data: Data) -> None:
        self.reached.release()
        assert self.may_go.acquire(timeout=60)
        super().put(key, data)

    def open(self) -> None:
        self.may_go.release(1000)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, writer: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(tmp_path)
    checkpoints = writer(gate, 1)
    live = state(1.0)
    assert checkpoints.begin(live, Position(1, 0), samples=100)
    assert gate.reached.acquire(timeout=60)
    live["weights"].fill_(2.0)
    checkpoints.generation = 2
    assert checkpoints.busy
    assert checkpoints.poll() is None
    assert not checkpoints.begin(live, Position(2, 0), samples=200), "one at a time"
    assert "no checkpoint at 200 samples" in capsys.readouterr().err
    gate.open()
    done = checkpoints.wait()
    assert isinstance(done, Saved)
    assert done.uri.endswith(str(Name(1, 1, 0))), "it keeps the generation that it began with"
    assert checkpoints.poll() is None, "a result is given once"
    assert value_of(checkpoints) == 1.0
    checkpoints.begin(live, Position(2, 0), samples=200)
    checkpoints.wait()
    assert value_of(checkpoints) == 2.0


def test_a_wait_makes_the_save_in_progress_urgent(tmp_path: Path, writer: Open) -> None:
    gate = Gate(tmp_path)
    checkpoints = writer(gate, 1)
    checkpoints.begin(state(1.0), Position(1, 0), samples=100)
    assert gate.reached.acquire(timeout=60)
    urgent = checkpoints._urgent
    assert not urgent.is_set()
    waiting = threading.Thread(target=checkpoints.wait)
    waiting.start()
    assert urgent.wait(60), "while nothing is written yet"
    gate.open()
    waiting.join()


def test_no_result_is_lost_to_the_next_save(storage: Storage, writer: Open) -> None:
    checkpoints = writer(storage, 1)
    for epoch in (1, 2):
        checkpoints.begin(state(0.0), Position(epoch, 0), samples=epoch)
        checkpoints._settle()
    seen = [checkpoints.poll(), checkpoints.poll()]
    assert [one.samples for one in seen if one is not None] == [1, 2]


def test_what_was_prepared_is_used(storage: Storage, writer: Open) -> None:
    checkpoints = writer(storage, 1)
    checkpoints.warm(state(0.0))
    checkpoints.begin(state(1.0), Position(1, 0), samples=1)
    checkpoints.wait()
    assert value_of(checkpoints) == 1.0


def test_one_that_was_overtaken_while_it_was_written_does_not_count(tmp_path: Path, writer: Open) -> None:
    gate = Gate(tmp_path)
    old = writer(gate, 1)
    old.begin(state(1.0), Position(9, 0), samples=900)
    assert gate.reached.acquire(timeout=60)
    save(writer(Folder(tmp_path), 2), 1, 0, 2.0)
    gate.open()
    with pytest.raises(Fenced, match="generation 2 has written"):
        old.wait()
    assert complete(gate.keys()) == [Name(2, 1, 0)]
    left = {key.partition("/")[0] for key in gate.keys()}  # noqa: SIM118
    assert left == {str(Name(2, 1, 0))}, "nor is it left lying about"


class Breaking(Folder):
    """A folder whose disk fails at a chosen object."""

    def __init__(self, root: Path, at: str) -> None:
        super().__init__(root)
        self.at = at

    def put(self, key: str, data: Data) -> None:
        if key.endswith(self.at):
            raise OSError(28, "No space left on device")
        super().put(key, data)


@pytest.mark.parametrize("at", ["0-0.safetensors", "index.json", "manifest.json"])
def test_a_failed_save_leaves_the_last_good_one_and_nothing_else(
    tmp_path: Path, writer: Open, at: str
) -> None:
    save(writer(Folder(tmp_path), 1), 1, 0, 1.0)
    before = sorted(Folder(tmp_path).keys())
    checkpoints = writer(Breaking(tmp_path, at), 1, keep=1)
    failed = save(checkpoints, 2, 0, 2.0)
    assert isinstance(failed, Failed)
    assert "No space left" in failed.reason
    assert sorted(Folder(tmp_path).keys()) == before
    checkpoints.storage = Folder(tmp_path)
    assert isinstance(save(checkpoints, 3, 0, 3.0), Saved), "and the next one is tried"
    assert value_of(checkpoints) == 3.0


class Unreachable(Folder):
    """A folder whose disk is away."""

    def get(self, key: str) -> bytearray:
        raise ConnectionError(f"{key}: no answer")


def test_a_storage_that_does_not_answer_is_not_taken_for_damage(tmp_path: Path, writer: Open) -> None:
    save(writer(Folder(tmp_path), 1), 1, 0)
    with pytest.raises(ConnectionError):
        writer(Unreachable(tmp_path), 2).read()


class Replaced(Folder):
    """A folder in which the newest checkpoint is replaced by a newer one just as it is read."""

    def __init__(self, root: Path, replace: Callable[[], object]) -> None:
        super().__init__(root)
        self._replace: Callable[[], object] | None = replace

    def get(self, key: str) -> bytearray:
        if self._replace is not None and key.endswith("safetensors"):
            replace, self._replace = self._replace, None
            replace()
        return super().get(key)


def test_a_reader_goes_on_to_what_has_replaced_what_it_read(tmp_path: Path, writer: Open) -> None:
    live = writer(Folder(tmp_path), 1, keep=1)
    save(live, 1, 0, 1.0)
    reader = writer(Replaced(tmp_path, lambda: save(live, 2, 0, 2.0)), 1)
    assert value_of(reader) == 2.0


def test_a_state_that_cannot_be_kept_is_refused_at_the_begin(storage: Storage, writer: Open) -> None:
    checkpoints = writer(storage, 1)
    with pytest.raises(TypeError, match="weights is not a dense tensor"):
        checkpoints.begin({"weights": torch.ones(2).to_sparse()}, Position(), samples=0)
    assert storage.keys() == []


def test_tied_weights_are_saved_once_and_restored_tied(storage: Storage, writer: Open) -> None:
    checkpoints, tied = writer(storage, 1), torch.ones(50_000)
    checkpoints.begin({"embedding": tied, "head": tied}, Position(1, 0), samples=1)
    done = checkpoints.wait()
    assert isinstance(done, Saved)
    assert 200_000 < done.size_bytes < 250_000
    found = checkpoints.read()
    assert found is not None
    assert found.state["head"] is found.state["embedding"]
    assert torch.equal(found.state["head"], tied)
