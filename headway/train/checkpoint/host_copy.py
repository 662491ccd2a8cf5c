"""Copies of tensors in host memory, in buffers of one size that every save uses again.

Torch's allocator of pinned memory rounds each buffer up to a power of two, so buffers of the tensors' own sizes would
pin up to twice the state.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass

import torch

from headway.train.checkpoint.ties import local_part

BUFFER_BYTES = 32 * 2**20
"""Size of a buffer: a power of two, which torch does not round up."""
_ALIGNMENT_BYTES = 64
"""Each tensor starts at a multiple of it, because copies to unaligned memory are slow."""
_PARALLEL_BYTES = 32 * 2**20
"""Size of copies within the host above which several threads make them."""
_COPIERS = min(4, os.cpu_count() or 1)
_Copy = tuple[tuple[torch.Tensor, ...], torch.Tensor]
"""Pieces of buffers, and the tensor whose bytes to copy there."""


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor in host memory. `pieces` are its bytes in their order: those of a large tensor lie in several buffers."""

    dtype: torch.dtype
    shape: torch.Size
    pieces: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes, without gaps between its pieces."""
        return sum(len(piece) for piece in self.pieces)

    def views(self) -> list[memoryview]:
        """Return the pieces as bytes that are not copied."""
        return [piece.numpy().data for piece in self.pieces]


class HostCopy:
    """Host memory for copies of a state, kept between saves because touching or pinning new memory is slow."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._pageable = _Buffers(buffer_bytes, pinned=False)
        self._pinned = _Buffers(buffer_bytes, pinned=True)
        self._copiers = futures.ThreadPoolExecutor(_COPIERS, thread_name_prefix="headway-copy")

    @property
    def allocated_bytes(self) -> int:
        """Size of all buffers in bytes, in use or not."""
        return self._pageable.allocated_bytes + self._pinned.allocated_bytes

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate the memory for a copy of these tensors, so that `take` need not."""
        for buffers, local in self._by_buffers(tensors):
            buffers.fit(local.values(), touch=True)

    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, HostTensor]:
        """Copy the tensors to host memory that the next call overwrites. Of a sharded tensor, copy this rank's part."""
        taken: dict[str, HostTensor] = {}
        for buffers, local in self._by_buffers(tensors):
            buffers.fit(local.values(), touch=False)
            copies = list(zip(buffers.divide(local.values()), local.values(), strict=True))
            for name, (pieces, tensor) in zip(local, copies, strict=True):
                taken[name] = HostTensor(tensor.dtype, tensor.shape, pieces)
            if buffers.pinned or sum(tensor.nbytes for tensor in local.values()) < _PARALLEL_BYTES:
                _copy(copies)
            else:
                # All ranks of the host are paused now, so their cores are free.
                list(self._copiers.map(_copy, _balanced_shares(copies, _COPIERS)))
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return {name: taken[name] for name in tensors}

    def _by_buffers(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> list[tuple[_Buffers, dict[str, torch.Tensor]]]:
        """Divide this rank's parts of the tensors by the buffers that receive them."""
        on_host: dict[str, torch.Tensor] = {}
        on_device: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            local = local_part(tensor)
            (on_device if local.is_cuda else on_host)[name] = local
        return [(self._pageable, on_host), (self._pinned, on_device)]


class _Buffers:
    """Buffers of one size, which tensors fill in their order."""

    def __init__(self, buffer_bytes: int, *, pinned: bool) -> None:
        self.pinned = pinned
        self._buffer_bytes = buffer_bytes
        self._buffers: list[torch.Tensor] = []

    @property
    def allocated_bytes(self) -> int:
        return len(self._buffers) * self._buffer_bytes

    def fit(self, tensors: Iterable[torch.Tensor], *, touch: bool) -> None:
        """Have as many buffers as these tensors fill. With `touch`, touch what they fill of new ones."""
        needed_bytes = sum(_aligned(tensor.nbytes) for tensor in tensors)
        count = -(-needed_bytes // self._buffer_bytes)
        del self._buffers[count:]
        for number in range(len(self._buffers), count):
            buffer = torch.empty(self._buffer_bytes, dtype=torch.uint8, device="cpu", pin_memory=self.pinned)
            if touch:
                buffer[: needed_bytes - number * self._buffer_bytes].zero_()
            self._buffers.append(buffer)

    def divide(self, tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Return the memory for the bytes of each tensor, after `fit` for the same tensors."""
        divided = []
        start = 0
        for tensor in tensors:
            end = start + tensor.nbytes
            divided.append(tuple(self._range(start, end)))
            start += _aligned(tensor.nbytes)
        return divided

    def _range(self, start: int, end: int) -> list[torch.Tensor]:
        pieces = []
        while start < end:
            number, at = divmod(start, self._buffer_bytes)
            piece = self._buffers[number][at : at + end - start]
            pieces.append(piece)
            start += len(piece)
        return pieces


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNMENT_BYTES


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in the order of its elements, without a copy where they lie so."""
    dense = tensor.resolve_conj().resolve_neg()
    # Torch calls a tensor of one element contiguous at any stride, but views it as bytes at a stride of 1 only.
    if not dense.is_contiguous() or dense.numel() == 1:
        dense = dense.clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8)


def _copy(copies: Sequence[_Copy]) -> None:
    for pieces, tensor in copies:
        # One tensor at a time, because the bytes of one that is not dense are a copy.
        source, start = _bytes_of(tensor), 0
        for piece in pieces:
            piece.copy_(source[start : start + len(piece)], non_blocking=True)
            start += len(piece)


def _balanced_shares(copies: Sequence[_Copy], shares: int) -> list[list[_Copy]]:
    """Divide the copies into shares of about equal size in bytes."""
    divided: list[list[_Copy]] = [[] for _ in range(shares)]
    sizes = [0] * shares
    for copy in sorted(copies, key=lambda copy: copy[1].nbytes, reverse=True):
        least = sizes.index(min(sizes))
        divided[least].append(copy)
        sizes[least] += copy[1].nbytes
    return divided
