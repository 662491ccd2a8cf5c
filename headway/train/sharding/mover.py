"""Transfer of shards between two layouts of the same tensors, in buckets, with a checksum of each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box
from headway.train.sharding.checksum import checksum
from headway.train.sharding.plan import Planner, Transfer, into_buckets
from headway.train.state.sharded import ShardMismatch

_ALIGNED_BYTES = 16
_DIRECT_BYTES = 2**17
"""Size from which a transfer is a message of its own, which needs no copy into a common buffer."""


@dataclass(slots=True)
class MovedTensor:
    """A tensor whose shards move. `old` and `new` have the box of each rank of the group; None for no member.

    `values` is this rank's shard: the old one before the move and the new one after it, None without one.
    """

    name: str
    dtype: torch.dtype
    old: Sequence[Box | None]
    new: Sequence[Box | None]
    divided: frozenset[int]
    """Dimensions that one of the layouts divides."""
    values: torch.Tensor | None


def move(tensors: Sequence[MovedTensor], peers: Peers, device: torch.device) -> int:
    """Give every rank its new shard of each tensor, and return the bytes that this rank sent or received.

    All ranks of the group call it with the same tensors. A shard that stays as it is keeps its storage, and a tensor whose
    layout does not change costs nothing. The storage of another shard is released as soon as its elements are sent, so a
    rank never holds much more than its old or new shards.

    Raises:
        PeersLost: a peer is gone; this rank may have lost a part of its state.
        ShardMismatch: the shards are not those before, so none of them may be used.
    """
    for one in tensors:
        _check_shape(one, peers.rank)
    tensors = [one for one in tensors if list(one.old) != list(one.new)]
    if not tensors:
        return 0
    before = [_share(one, peers.rank, one.old) for one in tensors]
    planner, plans = Planner(peers.world_size), []
    for number, one in enumerate(tensors):
        plans.append(planner.transfers(number, one.old, one.new, one.dtype.itemsize))
    shards = _Shards(tensors, plans, peers.rank, device)
    moved = 0
    for bucket in into_buckets(transfer for plan in plans for transfer in plan):
        moved += _exchange(bucket, shards, peers, device)
        shards.close_before(bucket[-1].tensor)
    shards.close_before(len(tensors))
    _compare(tensors, before, peers)
    return moved


class _Shards:
    """The shards of this rank during a move, of which few exist in both the old and the new form."""

    def __init__(
        self,
        tensors: Sequence[MovedTensor],
        plans: Sequence[Sequence[Transfer]],
        rank: int,
        device: torch.device,
    ) -> None:
        self._tensors = tensors
        self._plans = plans
        self._rank = rank
        self._device = device
        self._new: dict[int, torch.Tensor] = {}
        self._closed = 0
        self._users = Counter(_storage(one.values) for one in tensors if one.values is not None)

    def source(self, one: Transfer) -> torch.Tensor:
        """Return the elements of a transfer in this rank's old shard."""
        tensor = self._tensors[one.tensor]
        box = tensor.old[self._rank]
        assert tensor.values is not None, "only holders send"
        assert box is not None, "only holders send"
        return tensor.values[one.box.slices_in(box)]

    def target(self, one: Transfer) -> torch.Tensor:
        """Return the elements of a transfer in this rank's new shard."""
        box = self._tensors[one.tensor].new[self._rank]
        assert box is not None, "only members receive"
        return self._open(one.tensor, box)[one.box.slices_in(box)]

    def is_direct(self, one: Transfer) -> bool:
        """Return True if a transfer is large, and without gaps in the memory of both shards."""
        tensor = self._tensors[one.tensor]
        old, new = tensor.old[one.source], tensor.new[one.receiver]
        assert old is not None, "only holders send"
        assert new is not None, "only members receive"
        return one.nbytes >= _DIRECT_BYTES and one.box.is_run_of(old) and one.box.is_run_of(new)

    def close_before(self, number: int) -> None:
        """Complete the tensors before this one, which no later bucket has."""
        for closing in range(self._closed, number):
            tensor = self._tensors[closing]
            old, new = tensor.old[self._rank], tensor.new[self._rank]
            if old is not None and old == new:
                continue
            made = None if new is None else self._open(closing, new)
            for one in self._plans[closing]:
                if one.source == one.receiver == self._rank:
                    self.target(one).copy_(self.source(one))
            old_values, tensor.values = tensor.values, made
            self._new.pop(closing, None)
            if old_values is not None and self._users[_storage(old_values)] == 1:
                _release(old_values)
        self._closed = max(self._closed, number)

    def _open(self, number: int, box: Box) -> torch.Tensor:
        if number not in self._new:
            dtype = self._tensors[number].dtype
            self._new[number] = torch.empty(box.sizes, dtype=dtype, device=self._device)
        return self._new[number]


def _exchange(bucket: Sequence[Transfer], shards: _Shards, peers: Peers, device: torch.device) -> int:
    """Carry out the transfers of a bucket. Return this rank's bytes.

    A large transfer is a message of its own, from the memory of one shard to that of the other, if it has no gaps in either.
    The others of a pair of ranks share a message.
    """
    sends: list[tuple[int, torch.Tensor]] = []
    receives: list[tuple[int, torch.Tensor]] = []
    shared: tuple[dict[int, list[Transfer]], dict[int, list[Transfer]]] = {}, {}
    nbytes = 0
    for one in bucket:
        if peers.rank not in (one.source, one.receiver):
            continue
        nbytes += one.nbytes
        sending = one.source == peers.rank
        peer = one.receiver if sending else one.source
        if not shards.is_direct(one):
            shared[0 if sending else 1].setdefault(peer, []).append(one)
        elif sending:
            sends.append((peer, shards.source(one).contiguous()))
        else:
            receives.append((peer, shards.target(one)))
    sent, received = ({peer: _Message(ones, device) for peer, ones in part.items()} for part in shared)
    for message in sent.values():
        for one, place in message.places():
            source = shards.source(one)
            place.view(source.dtype).view(source.shape).copy_(source)
    sends += [(peer, message.buffer) for peer, message in sent.items()]
    receives += [(peer, message.buffer) for peer, message in received.items()]
    peers.exchange(sends, receives)
    for message in received.values():
        for one, place in message.places():
            target = shards.target(one)
            target.copy_(place.view(target.dtype).view(target.shape))
    return nbytes


class _Message:
    """A buffer with the elements of several transfers, each aligned for its type."""

    def __init__(self, transfers: Sequence[Transfer], device: torch.device) -> None:
        self._transfers = transfers
        self._starts = [0]
        for one in transfers:
            self._starts.append(self._starts[-1] + -(-one.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES)
        self.buffer = torch.empty(self._starts[-1], dtype=torch.uint8, device=device)

    def places(self) -> Iterator[tuple[Transfer, torch.Tensor]]:
        """Yield each transfer with the bytes of its elements."""
        for one, start in zip(self._transfers, self._starts, strict=False):
            yield one, self.buffer[start : start + one.nbytes]


def _storage(values: torch.Tensor) -> int:
    """Return the address of the memory of a shard, which other shards may share."""
    return values.untyped_storage().data_ptr()


def _release(values: torch.Tensor) -> None:
    """Free the memory of an old shard, to which the old model may still refer."""
    storage = values.untyped_storage()
    if storage.resizable():  # not after `numpy()`, whose array shares the memory
        storage.resize_(0)


def _check_shape(one: MovedTensor, rank: int) -> None:
    box = one.old[rank]
    if box is not None and (one.values is None or tuple(one.values.shape) != box.sizes):
        raise ShardMismatch(
            f"SHARD_MISMATCH: rank {rank} does not hold the expected part of {one.name}: {box.sizes}.",
            "Restart the job from its checkpoint, and report the model's placements.",
        )


def _share(one: MovedTensor, rank: int, layout: Sequence[Box | None]) -> int:
    """Return the checksum of this rank's shard; 0 if a lower rank has the same one, or there is none."""
    box = layout[rank]
    if box is None or box in layout[:rank]:
        return 0
    assert one.values is not None, "a member holds its shard"
    return checksum(one.values, box, one.divided)


def _compare(tensors: Sequence[MovedTensor], before: Sequence[int], peers: Peers) -> None:
    """Compare the sums of all ranks' checksums before and after the move."""
    after = [_share(one, peers.rank, one.new) for one in tensors]
    everyone = torch.tensor(peers.gather(*before, *after), dtype=torch.int64, device="cpu").sum(dim=0)
    wrong = (everyone[: len(tensors)] != everyone[len(tensors) :]).nonzero().flatten().tolist()
    if wrong:
        raise ShardMismatch(
            f"SHARD_MISMATCH: {len(wrong)} tensors were not transferred exactly, first {tensors[wrong[0]].name}.",
            "Restart the job from its checkpoint.",
        )
