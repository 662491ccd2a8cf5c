"""Plan of the transfers between an old and a new layout of a tensor, in the fewest bytes. Pure.

Every rank of the group computes the same plan. A rank keeps the elements that it holds already; the others come from the
holder that has sent the fewest bytes so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headway.train.sharding.boxes import Box

BUCKET_BYTES = 16 * 2**20
"""Most bytes that a rank sends, and most that it receives, in one exchange."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A box of tensor number `tensor` that rank `receiver` needs and rank `source` holds. Both may be the same."""

    tensor: int
    source: int
    receiver: int
    box: Box
    nbytes: int


class Planner:
    """Planner of the transfers of several tensors, which spreads the bytes sent over the ranks."""

    def __init__(self, ranks: int) -> None:
        self._sent = [0] * ranks

    def transfers(
        self, tensor: int, old: Sequence[Box | None], new: Sequence[Box | None], itemsize: int
    ) -> list[Transfer]:
        """Return the transfers of a tensor with elements of `itemsize` bytes.

        `old` and `new` have the box of each rank of the group; None for a rank that is not a member. The boxes of a layout
        cover the tensor, and two of them are equal or disjoint.
        """
        holders: dict[Box, list[int]] = {}
        for rank, box in enumerate(old):
            if box is not None:
                holders.setdefault(box, []).append(rank)
        found = []
        for receiver, needed in enumerate(new):
            for held, ranks in holders.items() if needed is not None else ():
                shared = needed.intersection(held) if needed is not None else None
                if shared is None:
                    continue
                nbytes = shared.elements * itemsize
                source = receiver if receiver in ranks else min(ranks, key=lambda rank: self._sent[rank])
                if source != receiver:
                    self._sent[source] += nbytes
                found.append(Transfer(tensor, source, receiver, shared, nbytes))
        return found


def into_buckets(transfers: Iterable[Transfer], bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[Transfer]]:
    """Divide transfers between different ranks into buckets, in their order.

    In a bucket no rank sends or receives more than `bucket_bytes`, unless a single element is larger.
    """
    bucket: list[Transfer] = []
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for one in _divided(transfers, bucket_bytes):
        after = max(sent.get(one.source, 0), received.get(one.receiver, 0)) + one.nbytes
        if bucket and after > bucket_bytes:
            yield bucket
            bucket, sent, received = [], {}, {}
        bucket.append(one)
        sent[one.source] = sent.get(one.source, 0) + one.nbytes
        received[one.receiver] = received.get(one.receiver, 0) + one.nbytes
    if bucket:
        yield bucket


def _divided(transfers: Iterable[Transfer], bucket_bytes: int) -> Iterator[Transfer]:
    """Cut transfers that do not fit a bucket, and leave out those within a rank."""
    for one in transfers:
        if one.source == one.receiver:
            continue
        itemsize = one.nbytes // one.box.elements
        for box in one.box.divided(bucket_bytes // itemsize):
            yield Transfer(one.tensor, one.source, one.receiver, box, box.elements * itemsize)
