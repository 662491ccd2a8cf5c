"""Boxes: the part of a tensor that a rank holds, as an offset and a size in each dimension. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A box of elements of a tensor. A box with a size of 0 is empty."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements in the box."""
        return math.prod(self.sizes)

    def intersection(self, other: Box) -> Box | None:
        """Return the elements of both boxes; None without any."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """Return the indices of this box in a tensor that holds the elements of `outer`."""
        starts = [mine - its for mine, its in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))

    def is_run_of(self, outer: Box) -> bool:
        """Return True if this part of `outer` is without gaps in the memory of a contiguous tensor of `outer`."""
        partial = [dim for dim, size in enumerate(self.sizes) if size != outer.sizes[dim]]
        return not partial or all(size == 1 for size in self.sizes[: partial[-1]])

    def divided(self, most_elements: int) -> Iterator[Box]:
        """Yield boxes of at most `most_elements` (but at least one) that together are this box.

        Each is cut in the first dimension where the box is longer than 1.
        """
        if self.elements <= max(1, most_elements):
            yield self
            return
        dim = next(number for number, size in enumerate(self.sizes) if size > 1)
        length = max(1, most_elements * self.sizes[dim] // self.elements)
        for start in range(0, self.sizes[dim], length):
            yield from self._part(dim, start, min(length, self.sizes[dim] - start)).divided(most_elements)

    def _part(self, dim: int, start: int, size: int) -> Box:
        offsets, sizes = list(self.offsets), list(self.sizes)
        offsets[dim] += start
        sizes[dim] = size
        return Box(tuple(offsets), tuple(sizes))

    def _ends(self) -> Iterator[int]:
        return (offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Division of a tensor over a mesh of ranks, which are numbered with the last mesh dimension fastest.

    `mesh` has the number of ranks in each mesh dimension. `dims` has the tensor's dimension that each mesh dimension
    divides; None where all ranks hold the same. `innermost` is the mesh dimension that divides last, whatever its number.
    """

    mesh: tuple[int, ...]
    dims: tuple[int | None, ...]
    innermost: int | None = None

    def boxes(self, shape: Sequence[int]) -> list[Box]:
        """Return the box of each rank, of a tensor of this shape.

        As in DTensor, mesh dimensions divide in their order, each into parts of `ceil(size / ranks)` elements of which the
        last ones may be shorter or empty.
        """
        return [self._box(shape, rank) for rank in range(math.prod(self.mesh))]

    def _box(self, shape: Sequence[int], rank: int) -> Box:
        offsets, sizes = [0] * len(shape), list(shape)
        order = sorted(range(len(self.mesh)), key=lambda number: number == self.innermost)
        for number in order:
            dim, ranks = self.dims[number], self.mesh[number]
            if dim is None:
                continue
            part = -(-sizes[dim] // ranks)
            start = min(rank // math.prod(self.mesh[number + 1 :]) % ranks * part, sizes[dim])
            offsets[dim] += start
            sizes[dim] = min(part, sizes[dim] - start)
        return Box(tuple(offsets), tuple(sizes))
