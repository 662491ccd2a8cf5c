"""The ranks of one generation, and the small things that they agree on host to host.

All of it goes over a gloo group of its own, so that it neither waits for a device nor comes between the
collectives of the training. Every method but `is_main` must be called by every rank, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headway.train.environment import Environment


class Pending:
    """A maximum that is being agreed on."""

    def __init__(self, value: int, group: Any) -> None:
        self._value = torch.tensor([value], dtype=torch.int64)
        self._work = (
            dist.all_reduce(self._value, op=dist.ReduceOp.MAX, group=group, async_op=True) if group else None
        )

    def wait(self) -> int:
        """The largest value that any rank gave."""
        if self._work is not None:
            self._work.wait()
        return int(self._value.item())


class Peers:
    """This rank among its peers. Alone, every agreement is immediate and needs no process group."""

    def __init__(self, *, rank: int, world_size: int, timeout: timedelta | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = dist.new_group(backend="gloo", timeout=timeout) if world_size > 1 else None

    @classmethod
    def meet(cls, environment: Environment, device: torch.device, timeout_s: float) -> Peers:
        """Join the process group that the environment names, if it names one."""
        timeout = timedelta(seconds=timeout_s)
        if environment.distributed and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        return cls(rank=environment.rank, world_size=environment.world_size, timeout=timeout)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which speaks for the run."""
        return self.rank == 0

    def begin_maximum(self, value: int) -> Pending:
        """Start to agree on the largest of the ranks' values, without waiting."""
        return Pending(value, self._group)

    def maximum(self, value: int) -> int:
        """The largest of the ranks' values."""
        return self.begin_maximum(value).wait()

    def sum(self, values: Sequence[int]) -> list[int]:
        """The sums of the ranks' values, modulo 2**64 (signed)."""
        sums = torch.tensor(values, dtype=torch.int64)
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)
        return [int(value) for value in sums]

    def from_main(self, data: bytes) -> bytes:
        """Rank 0's `data`."""
        if self._group is None:
            return data
        (size,) = self.sum([len(data) if self.is_main else 0])
        buffer = torch.empty(size, dtype=torch.uint8)
        if self.is_main and size:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if size:
            dist.broadcast(buffer, src=0, group=self._group)
        return buffer.numpy().tobytes()
