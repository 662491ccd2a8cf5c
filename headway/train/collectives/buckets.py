"""Tensors of one rank for others as a stream of bytes, which a whole group broadcasts in buckets of one size."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

BUCKET_BYTES = 2**25
_ALIGNED_BYTES = 512
"""Every tensor begins at a multiple of it, as in the memory of a device, where others would be slower to send."""
_IN_FLIGHT = 2
"""Buffers in use: one is filled or emptied while the other is sent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor in a bucket: `nbytes` from `start` in the tensor's bytes, and from `place` in the bucket."""

    tensor: int
    start: int
    place: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bytes of one broadcast. A rank that has no tensors knows only how many there are."""

    nbytes: int
    pieces: tuple[Piece, ...] = ()

    @property
    def is_direct(self) -> bool:
        """True if the bucket is a part of one tensor, which is sent from and received into the tensor's own memory."""
        return len(self.pieces) == 1 and self.pieces[0].nbytes == self.nbytes


def stream_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes of the stream that has tensors of these sizes in bytes."""
    return max((start + size for start, size in zip(_starts(sizes), sizes, strict=True) if size), default=0)


def into_buckets(nbytes: int, sizes: Sequence[int], bucket_bytes: int) -> Iterator[Bucket]:
    """Yield the buckets of a stream of so many bytes, with the pieces of tensors of these sizes in bytes.

    A rank without tensors passes no sizes, and gets buckets of the same sizes.
    """
    starts = _starts(sizes)
    first = 0
    for begin in range(0, nbytes, bucket_bytes):
        end, pieces = min(begin + bucket_bytes, nbytes), []
        while first < len(sizes) and starts[first] + sizes[first] <= begin:
            first += 1
        for number in range(first, len(sizes)):
            if starts[number] >= end:
                break
            start, stop = max(begin, starts[number]), min(end, starts[number] + sizes[number])
            if start < stop:
                pieces.append(Piece(number, start - starts[number], start - begin, stop - start))
        yield Bucket(end - begin, tuple(pieces))


def broadcast(
    tensors: Sequence[torch.Tensor],
    *,
    rank: int,
    source: int,
    receivers: Sequence[int],
    device: torch.device,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Fill the receivers' tensors with those of rank `source`, by broadcasts in the default group.

    Every rank of the group calls it; those that neither send nor receive pass no tensors. The tensors are contiguous and lie
    on `device`. They are full once the device has completed its work.
    """
    nbytes = stream_bytes([one.nbytes for one in tensors])
    if len(receivers) + 1 < dist.get_world_size():
        size = torch.tensor([nbytes if rank == source else 0], dtype=torch.int64, device=device)
        dist.broadcast(size, src=source)
        nbytes = int(size)

    def send(buffer: torch.Tensor) -> Any:
        return dist.broadcast(buffer, src=source, async_op=True)

    carry(tensors, nbytes, send, fills=rank == source, device=device, bucket_bytes=bucket_bytes)


def carry(
    tensors: Sequence[torch.Tensor],
    nbytes: int,
    send: Callable[[torch.Tensor], Any],
    *,
    fills: bool,
    device: torch.device,
    bucket_bytes: int,
) -> None:
    """Have `send` broadcast the stream of the tensors, bucket by bucket; it returns torch's work.

    `fills` is True on the rank whose tensors are sent. Others get the tensors, or, without any, only take part.
    """
    flat = [_bytes_of(one) for one in tensors]
    buffers = [
        torch.empty(min(nbytes, bucket_bytes), dtype=torch.uint8, device=device) for _ in range(_IN_FLIGHT)
    ]
    in_flight: deque[Callable[[], None]] = deque()
    turns = itertools.cycle(buffers)
    for bucket in into_buckets(nbytes, [one.numel() for one in flat], bucket_bytes):
        if len(in_flight) == _IN_FLIGHT:
            in_flight.popleft()()
        if bucket.is_direct:
            (piece,) = bucket.pieces
            work = send(flat[piece.tensor][piece.start : piece.start + piece.nbytes])
            in_flight.append(work.wait)
            continue
        buffer = next(turns)[: bucket.nbytes]
        pairs = [
            (buffer[one.place : one.place + one.nbytes], flat[one.tensor][one.start : one.start + one.nbytes])
            for one in bucket.pieces
        ]
        if fills:
            for place, part in pairs:
                place.copy_(part)
        in_flight.append(_Arrival(send(buffer), [] if fills else pairs).complete)
    while in_flight:
        in_flight.popleft()()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A bucket under way in a buffer. `pairs` has what is copied out of it, and where to."""

    work: Any
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]

    def complete(self) -> None:
        self.work.wait()
        for place, part in self.pairs:
            part.copy_(place)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor as bytes. One of a single element may have any stride."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each tensor begins in the stream."""
    aligned = (-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes)
    return list(itertools.accumulate(aligned, initial=0))[: len(sizes)]
