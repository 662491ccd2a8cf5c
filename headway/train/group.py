"""Small host-side agreements between the ranks, beside the exchange of gradients.

They run on a gloo group of their own, so that they neither disturb the order of the gradients'
collectives nor make a GPU wait.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from headway.train.ledger import Ledger

_TIMEOUT = timedelta(minutes=5)
_BROADCAST_BYTES = 64 << 20


class Group:
    """The ranks of this generation."""

    def __init__(self, *, distributed: bool) -> None:
        alone = not distributed or dist.get_world_size() == 1
        self._group = None if alone else dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._flags = torch.zeros(2, dtype=torch.uint8)
        self._asked: dist.Work | None = None
        self._pending = Ledger()

    def ask(self, *, stop: bool, checkpoint: bool) -> None:
        """Start to agree. The answer is the same on all ranks: yes if any rank says so.

        It is asked when a step begins and read when it ends: the exchange hides behind the step.
        """
        self._flags[0], self._flags[1] = stop, checkpoint
        if self._group is not None:
            self._asked = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def answer(self) -> tuple[bool, bool]:
        """(stop, checkpoint), as asked last."""
        if self._asked is not None:
            self._asked.wait()
            self._asked = None
        return bool(self._flags[0]), bool(self._flags[1])

    def pend(self, mine: Ledger) -> None:
        """Remember this rank's committed samples until the next merge."""
        self._pending = self._pending.plus(mine)

    def merge(self) -> Ledger:
        """What all ranks committed since the last merge. Every rank must call it."""
        values = torch.tensor(self._pending.as_list(), dtype=torch.int64)
        self._pending = Ledger()
        if self._group is not None:
            dist.all_reduce(values, group=self._group)
        return Ledger.from_list(values.tolist())

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self._group is None:
            return data
        size = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self._group)
        length = int(size.item())
        if length == 0:
            return b""
        whole = bytearray(data) if data else bytearray(length)
        tensor = torch.frombuffer(whole, dtype=torch.uint8)
        for piece in torch.split(tensor, _BROADCAST_BYTES):
            dist.broadcast(piece, src=0, group=self._group)
        return bytes(whole)
