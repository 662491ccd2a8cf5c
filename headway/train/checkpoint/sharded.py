"""The contents of a checkpoint, planned by `torch.distributed.checkpoint` and stored in a `Storage`.

Torch's planners decide which rank writes which shard and, at any other number of ranks, which rank reads which slice.
This module implements the storage that they require: parts and an index.

    <folder>/<rank>-<n>.safetensors    tensors, or a rank's shards of them, as bytes behind a JSON header
             index.json                the location of each shard, by tensor

Torch's own file format is not used. It serialises each tensor with `torch.save`, which takes several times longer,
and reads its index with pickle, which can run code.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from headway.contract.manifest import CheckpointPart
from headway.storage.stores import Storage
from headway.train.checkpoint.grouping import PART_BYTES, alignment_bytes, group_into_parts
from headway.train.checkpoint.host_copy import HostTensor
from headway.train.checkpoint.parts import get, lay_out, put, tensor_of
from headway.train.checkpoint.threads import for_each
from headway.train.checkpoint.ties import check_names

_T = TypeVar("_T")

INDEX = "index.json"
TREE = "#tree"
"""Name of the tree of the first pipeline stage in the index, beside the names of the tensors."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """Location of a shard: `size_bytes` from byte `at` of a part."""

    part: CheckpointPart
    at: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The state that a rank saves. `tensors` are the live ones, for their shapes; `host` has copies of the bytes."""

    tensors: Mapping[str, torch.Tensor]
    host: Mapping[str, HostTensor]
    trees: Mapping[str, bytes]
    """The state of a stage without its tensors, by name, which only the stage's first rank saves; empty on the others."""


def write(
    storage: Storage,
    folder: str,
    contents: Contents,
    *,
    seal: Callable[[list[CheckpointPart]], None],
    group: ProcessGroup | None,
    urgent: threading.Event | None = None,
    part_bytes: int = PART_BYTES,
) -> None:
    """Write the parts and the index, then call `seal` with all of them on the first rank. `urgent` is as for `for_each`.

    With a group, all its ranks must call this function, and none returns before the seal. Without a group, the function
    waits for no rank.

    Raises:
        OSError: the storage failed.
        Exception: `seal` raised it.
    """
    planner, writer = _Saver(contents), _Writer(storage, folder, seal, urgent, part_bytes)
    state: dict[str, Any] = {**contents.tensors, **contents.trees}
    if group is not None:
        with _first_failure():
            save(state, storage_writer=writer, planner=planner, process_group=group)
        return
    # `save` without a group, but without its warning, as a warnings filter would affect other threads.
    planner.set_up_planner(state, is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def read(
    storage: Storage,
    folder: str,
    parts: Sequence[CheckpointPart],
    *,
    into: tuple[Mapping[str, torch.Tensor], Mapping[str, str]] | None,
    group: ProcessGroup | None,
) -> tuple[list[bytes], dict[str, torch.Tensor]]:
    """Read the trees and the tensors of a checkpoint. With a group every rank calls this.

    With `into`, what `tensors_of` returned, the tensors are filled in place. A checkpoint has at least one of those that are
    tied: older libraries saved each of them.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is damaged.
        LookupError: it does not have exactly the tensors of `into`, on all ranks of the group together.
    """
    reader = _Reader(storage, folder, {part.key: part for part in parts})
    saved = reader.metadata.state_dict_metadata
    trees = sorted((name for name in saved if name.startswith(TREE)), key=lambda name: (len(name), name))
    if into is None:
        tensors = {
            name: torch.empty(kept.size, dtype=kept.properties.dtype, device="cpu")
            for name, kept in saved.items()
            if isinstance(kept, TensorStorageMetadata)
        }
    else:
        check_names(into[1], saved.keys() - set(trees), group)
        tensors = {name: tensor for name, tensor in into[0].items() if name in saved}
    state: dict[str, Any] = {**tensors, **dict.fromkeys(trees, b"")}
    planner = _Loader()
    if group is not None:
        with _first_failure():
            load(state, storage_reader=reader, planner=planner, process_group=group)
    else:
        planner.set_up_planner(state, reader.metadata, is_coordinator=True)
        (plan,) = planner.create_global_plan([planner.create_local_plan()])
        reader.read_data(planner.finish_plan(plan), planner).wait()
    return [planner.trees[name] for name in trees], tensors


def tree_name(stage: int) -> str:
    """Return the name of the tree of a pipeline stage."""
    return f"{TREE}.{stage}" if stage else TREE


def from_first(group: ProcessGroup, produce: Callable[[], _T]) -> _T:
    """Return the result of the first rank of the group on all of its ranks.

    Raises:
        Exception: the exception that `produce` raised.
    """
    box: list[Any] = [None, None]
    if dist.get_rank(group) == 0:
        try:
            box[0] = produce()
        except (OSError, RuntimeError) as error:
            box[1] = error
    dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)
    if box[1] is not None:
        raise box[1]
    produced: _T = box[0]
    return produced


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the error of the first failed rank instead of torch's list of errors."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        cause.add_note(f"on rank {rank}")
        raise cause from error


class _Saver(DefaultSavePlanner):
    """Save planner that plans with the live tensors and writes the bytes of their copies."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(
            flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True
        )
        self._contents = contents

    def resolve_data(self, write_item: WriteItem) -> Any:
        name = write_item.index.fqn
        if name in self._contents.trees:
            return io.BytesIO(self._contents.trees[name])
        return self._contents.host[name]


class _Loader(DefaultLoadPlanner):
    """Load planner that keeps bytes unchanged."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.trees: dict[str, bytes] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.trees[read_item.dest_index.fqn] = value.getvalue()


class _Writer(StorageWriter):
    """Writer of the parts and the index, which then calls `seal`."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        seal: Callable[[list[CheckpointPart]], None],
        urgent: threading.Event | None,
        part_bytes: int,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._seal = seal
        self._urgent = urgent
        self._part_bytes = part_bytes

    def reset(self, checkpoint_id: object = None) -> None:
        """Do nothing: no state is kept between saves."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:  # noqa: ARG003
        return False  # the writer is never opened by name

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Do nothing: the first part creates everything."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank the prefix of its parts' names."""
        return [SavePlan(plan.items, rank, plan.planner_data) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: Any) -> Future[list[WriteResult]]:
        def write(part: tuple[int, list[WriteItem]]) -> list[WriteResult]:
            number, items = part
            return self._write_part(f"{plan.storage_data}-{number}.safetensors", items, planner)

        parts = list(enumerate(group_into_parts(plan.items, self._part_bytes)))
        written = for_each(write, parts, self._urgent)
        future: Future[list[WriteResult]] = Future()
        future.set_result([result for of_part in written for result in of_part])
        return future

    def _write_part(self, key: str, items: list[WriteItem], planner: Any) -> list[WriteResult]:
        ordered = sorted(items, key=alignment_bytes, reverse=True)
        pieces, ranges = lay_out([(item.index.fqn, planner.resolve_data(item)) for item in ordered])
        part = put(self._storage, self._folder, key, pieces)
        return [
            WriteResult(item.index, size, _Stored(part, at, size))
            for item, (at, size) in zip(ordered, ranges, strict=True)
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored: dict[MetadataIndex, _Stored] = {
            result.index: result.storage_data for of_rank in results for result in of_rank
        }
        parts = sorted({place.part for place in stored.values()}, key=lambda part: part.key)
        index = {
            name: _entry(name, kept, stored) for name, kept in sorted(metadata.state_dict_metadata.items())
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        self._seal([*parts, put(self._storage, self._folder, INDEX, [text])])


def _entry(name: str, kept: object, stored: Mapping[MetadataIndex, _Stored]) -> dict[str, Any]:
    """Return the index entry of a tensor, or of the tree."""
    if not isinstance(kept, TensorStorageMetadata):
        return {"chunks": [_place(stored[MetadataIndex(name)])]}
    return {
        "dtype": str(kept.properties.dtype).removeprefix("torch."),
        "shape": list(kept.size),
        "chunks": [
            {
                "offsets": list(chunk.offsets),
                "sizes": list(chunk.sizes),
                **_place(stored[MetadataIndex(name, chunk.offsets)]),
            }
            for chunk in kept.chunks
        ],
    }


def _place(stored: _Stored) -> dict[str, Any]:
    return {"part": stored.part.key, "at": stored.at, "size_bytes": stored.size_bytes}


class _Reader(StorageReader):
    """Reader of the index and of whole parts, whose checksums it verifies."""

    def __init__(self, storage: Storage, folder: str, parts: Mapping[str, CheckpointPart]) -> None:
        self._storage = storage
        self._folder = folder
        self._stored: dict[MetadataIndex, _Stored] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._shapes: dict[MetadataIndex, torch.Size] = {}
        self.metadata = Metadata({})
        if INDEX not in parts:
            raise ValueError("its manifest lists no index")
        for name, entry in json.loads(get(storage, folder, parts[INDEX])).items():
            self._index(name, entry, parts)

    def _index(self, name: str, entry: dict[str, Any], parts: Mapping[str, CheckpointPart]) -> None:
        chunks = []
        for chunk in entry["chunks"]:
            index = MetadataIndex(name, chunk.get("offsets"))
            self._stored[index] = _Stored(parts[chunk["part"]], chunk["at"], chunk["size_bytes"])
            if "offsets" in chunk:
                self._shapes[index] = torch.Size(chunk["sizes"])
                chunks.append(ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])))
        if "dtype" not in entry:
            self.metadata.state_dict_metadata[name] = BytesStorageMetadata()
            return
        self._dtypes[name] = getattr(torch, entry["dtype"])
        self.metadata.state_dict_metadata[name] = TensorStorageMetadata(
            TensorProperties(dtype=self._dtypes[name]), torch.Size(entry["shape"]), chunks
        )

    def reset(self, checkpoint_id: object = None) -> None:
        """Do nothing: no state is kept between loads."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:  # noqa: ARG003
        return False  # the reader is never opened by name

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        return self.metadata

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Do nothing: the constructor has read the index."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: Any) -> Future[None]:
        wanted: dict[CheckpointPart, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(self._stored[item.storage_index].part, []).append(item)

        def read(part: CheckpointPart) -> None:
            data = get(self._storage, self._folder, part)
            for item in wanted[part]:
                self._take(item, data, planner)

        for_each(read, list(wanted))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _take(self, item: ReadItem, data: bytearray, planner: Any) -> None:
        stored = self._stored[item.storage_index]
        view = memoryview(data)[stored.at : stored.at + stored.size_bytes]
        if item.type is LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(view))
            return
        name = item.storage_index.fqn
        target = planner.resolve_tensor(item).detach()
        source = tensor_of(view, self._dtypes[name], self._shapes[item.storage_index])
        for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            source = source.narrow(dim, begin, length)
        target.copy_(source)
        planner.commit_tensor(item, target)
