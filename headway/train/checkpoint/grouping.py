"""Division of what a rank writes into the parts of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.distributed.checkpoint.planner import WriteItem

PART_BYTES = 256 * 2**20
"""Size at which a part is closed: a thread that reads a part takes as much memory."""


def group_into_parts(items: Sequence[WriteItem], part_bytes: int) -> Iterator[list[WriteItem]]:
    """Divide the items into parts, in their order. A part is closed once it has `part_bytes`."""
    bundle: list[WriteItem] = []
    size = 0
    for item in items:
        bundle.append(item)
        if item.tensor_data is not None:
            size += item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
        if size >= part_bytes:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle


def alignment_bytes(item: WriteItem) -> int:
    """Return the bytes of an element. Larger elements go first in a part, so all are aligned without gaps."""
    return item.tensor_data.properties.dtype.itemsize if item.tensor_data is not None else 0
