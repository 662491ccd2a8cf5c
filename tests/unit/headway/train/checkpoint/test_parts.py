"""Parts of checkpoints: their format, tied tensors in them, and several threads that work on them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.contract.manifest import CheckpointPart
from headway.storage.stores import Data, Folder, Storage
from headway.train.checkpoint import parts, sharded
from headway.train.checkpoint.host_copy import HostCopy
from headway.train.checkpoint.staging import split, tensors_of


def write_tensors(
    storage: Storage, tree: bytes, tensors: dict[str, torch.Tensor], **options: Any
) -> list[CheckpointPart]:
    """Store these tensors with a tree, and return the parts."""
    stored: list[CheckpointPart] = []
    contents = sharded.Contents(tensors, HostCopy().take(tensors), {sharded.tree_name(0): tree})
    sharded.write(storage, "folder", contents, seal=stored.extend, group=None, **options)
    return stored


@pytest.mark.parametrize("saved", ["once", "twice"])
def test_tied_tensors_are_loaded_in_place_from_checkpoints_of_this_and_older_libraries(
    tmp_path: Path, saved: str
) -> None:
    storage, old, new = Folder(tmp_path), torch.ones(3), torch.zeros(3)
    tree, tensors = split({"embedding": old, "head": old})
    if saved == "twice":
        tree, tensors = split({"embedding": old, "head": old.clone()})
    stored = write_tensors(storage, tree, tensors)
    into = tensors_of({"embedding": new, "head": new})
    trees, loaded = sharded.read(storage, "folder", stored, into=into, group=None)
    assert len(trees) == 1
    assert len(loaded) == {"once": 1, "twice": 2}[saved]
    assert new.tolist() == [1, 1, 1]


def test_tensors_that_are_not_tied_any_more_do_not_fit(tmp_path: Path) -> None:
    storage, tied = Folder(tmp_path), torch.ones(3)
    stored = write_tensors(storage, *split({"embedding": tied, "head": tied}))
    into = tensors_of({"embedding": torch.ones(3), "head": torch.ones(3)})
    with pytest.raises(LookupError, match="different tensors: head"):
        sharded.read(storage, "folder", stored, into=into, group=None)


class Together(Folder):
    """A folder that stores parts only two at a time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.together = threading.Barrier(2, timeout=60)

    def put(self, key: str, data: Data) -> None:
        if key.endswith(".safetensors"):
            self.together.wait()
        super().put(key, data)

    def get(self, key: str) -> bytearray:
        if key.endswith(".safetensors"):
            self.together.wait()
        return super().get(key)


def test_parts_are_written_and_read_at_once_when_training_waits(tmp_path: Path) -> None:
    storage, urgent = Together(tmp_path), threading.Event()
    urgent.set()
    live = {str(number): torch.full((1000,), float(number)) for number in range(3)}
    stored = write_tensors(storage, split(live)[0], live, urgent=urgent, part_bytes=4000)
    assert len(stored) == len(live) + 1 + 1, "the tree has a part, and the index"
    _, tensors = sharded.read(storage, "folder", stored, into=None, group=None)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in live.items())


def test_a_part_is_a_file_that_others_can_read(tmp_path: Path) -> None:
    taken = HostCopy().take({"a": torch.arange(3.0), "b": torch.tensor([True])})
    pieces, ranges = parts.lay_out(list(taken.items()))
    parts.put(Folder(tmp_path), "folder", "part", pieces)
    data = (tmp_path / "folder" / "part").read_bytes()
    head = int.from_bytes(data[:8], "little")
    assert data[8 : 8 + head].strip() == (
        b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},'
        b'"b":{"dtype":"BOOL","shape":[1],"data_offsets":[12,13]}}'
    )
    assert [data[at : at + size] for at, size in ranges] == [torch.arange(3.0).numpy().tobytes(), b"\x01"]
