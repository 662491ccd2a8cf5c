"""The parts of a checkpoint in a `Storage`: safetensors files with checksums.

A part is a JSON header (name: type, shape, range of bytes), followed by the bytes of the tensors without
gaps.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headway.contract.manifest import CheckpointPart
from headway.storage.stores import Storage
from headway.train.checkpoint.host_copy import HostTensor

_PIECE_BYTES = 8 * 2**20
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types in the headers of parts; tensors of other types appear as bytes. The index has the true types."""


def put(storage: Storage, folder: str, key: str, pieces: Sequence[memoryview | bytes]) -> CheckpointPart:
    """Store a part, and return its key, size and digest.

    Raises:
        OSError: the storage failed.
    """
    digest = hashlib.sha256()  # 1.6 GB/s, so a weaker checksum would save little
    size = 0

    def measured() -> Iterator[memoryview]:
        nonlocal size
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _PIECE_BYTES):
                slice_ = view[start : start + _PIECE_BYTES]
                digest.update(slice_)
                size += len(slice_)
                yield slice_

    # A small part is sent as a whole: an object store needs three requests for pieces, and one otherwise.
    small = sum(len(piece) for piece in pieces) <= _PIECE_BYTES
    storage.put(f"{folder}/{key}", b"".join(measured()) if small else measured())
    return CheckpointPart(key, size, digest.hexdigest())


def get(storage: Storage, folder: str, part: CheckpointPart) -> bytearray:
    """Read a part and verify its size and checksum.

    Raises:
        FileNotFoundError: the part is missing.
        ValueError: the part is damaged.
    """
    data = storage.get(f"{folder}/{part.key}")
    if len(data) != part.size_bytes:
        raise ValueError(f"{part.key} has {len(data)} bytes of {part.size_bytes}")
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise ValueError(f"{part.key} does not match its checksum")
    return data


def lay_out(
    data: Sequence[tuple[str, HostTensor | io.BytesIO]],
) -> tuple[list[memoryview | bytes], list[tuple[int, int]]]:
    """Return the pieces of a part with these contents, and the offset and size of each item in bytes."""
    header: dict[str, Any] = {}
    views: list[memoryview | bytes] = []
    end = 0
    for name, one in data:
        own = [one.getbuffer()] if isinstance(one, io.BytesIO) else one.views()
        size = sum(len(view) for view in own)
        if isinstance(one, HostTensor) and one.dtype in _NAMES:
            kind, shape = _NAMES[one.dtype], list(one.shape)
        else:
            kind, shape = "U8", [size]
        begin, end = end, end + size
        header[name if name not in header else f"{name}~{len(header)}"] = {
            "dtype": kind,
            "shape": shape,
            "data_offsets": [begin, end],
        }
        views += own
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    ranges = [entry["data_offsets"] for entry in header.values()]
    return [head, *views], [(len(head) + begin, end - begin) for begin, end in ranges]


def tensor_of(view: memoryview, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Return a tensor that shares these bytes."""
    if not view:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(view, dtype=dtype).reshape(shape)
