"""A second copy of every shard: each rank holds that of the rank before it, and all ranks take a step or none.

Before a step each rank sends its gradients to the next rank, and a one-element all-reduce commits the step. A rank that
completed the all-reduce takes the step, on its own shards and on the copy. If a rank is lost meanwhile, another one may not know
that the step is committed: it keeps the gradients, and takes the step later if any remaining rank has taken it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from headway.errors import HeadwayError
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box
from headway.train.sharding.held_step import HeldStep
from headway.train.sharding.recovery import RecoveryPlan
from headway.train.sharding.shadow import Shadow, ShardKey, pack, unpack

_ELEMENTWISE = (AdamW, Adam, SGD)
"""Optimizers whose step of an element depends on that element alone, so that the step of a copied shard is exact."""
_SMALL_BYTES = 1 << 18
"""Size below which tensors are sent together, because each message has a fixed cost."""


class RedundancyUnsupported(HeadwayError):
    """Raised when a script asks for copies of shards that cannot be kept exact."""

    code = "REDUNDANCY_UNSUPPORTED"


@dataclass(frozen=True, slots=True)
class ShardToCopy:
    """A sharded tensor: this rank's shard, and the size of that of the rank before it."""

    key: ShardKey
    mine: torch.Tensor
    sizes: tuple[int, ...]

    def empty(self) -> torch.Tensor:
        """Return memory for the shard of the rank before this one."""
        return torch.empty(self.sizes, dtype=self.mine.dtype, device=self.mine.device)


class Redundancy:
    """The copy on this rank of the shards of the rank before it, and the commit of each step (`StepCommit`).

    Raises:
        RedundancyUnsupported: a step of the optimizer is not elementwise.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        if type(optimizer) not in _ELEMENTWISE:
            names = ", ".join(one.__name__ for one in _ELEMENTWISE)
            raise RedundancyUnsupported(
                f"REDUNDANCY_UNSUPPORTED: elastic.redundancy: neighbour works with {names}, not with "
                f"{type(optimizer).__name__}: the copy of a shard must take the same steps.",
                "Use one of these optimizers, or leave elastic.redundancy out of the job file.",
            )
        self.position = 0
        """Rank of this process when the copies were made; its shards are those of this position."""
        self.size = 0
        """Number of ranks when the copies were made; 0 while this rank's shards are at no position."""
        self._optimizer = optimizer
        self._device = device
        self._peers: Peers | None = None
        self._shadow: Shadow | None = None
        self._parameters: dict[str, nn.Parameter] = {}
        self._theirs: dict[str, torch.Tensor] = {}
        self._present: Sequence[bool] = ()
        self._held = HeldStep(optimizer)

    def establish(
        self, peers: Peers, shards: Sequence[ShardToCopy], parameters: Mapping[str, nn.Parameter]
    ) -> int:
        """Copy the shards to the next rank, and those of the rank before to this one. Every rank calls it. One alone has no copy.

        `parameters` has those that the optimizer trains. Returns the bytes sent and received.

        Raises:
            PeersLost: a peer is gone.
        """
        self.forget()
        self.position, self.size = peers.rank, peers.world_size
        if peers.world_size == 1:
            return 0
        copies = {one.key: one.empty() for one in shards}
        nbytes = pass_on(
            peers,
            [((peers.rank + 1) % peers.world_size, [one.mine for one in shards])],
            [((peers.rank - 1) % peers.world_size, list(copies.values()))],
            self._device,
        )
        self._parameters = dict(parameters)
        names = {id(one): name for name, one in parameters.items()}
        self._shadow = Shadow(self._optimizer, names, copies)
        self._theirs = {name: torch.empty_like(copies[name, ""]) for name in self._parameters}
        self._peers = peers
        return nbytes

    def forget(self) -> None:
        """Drop the copy: this rank's shards move, or are those of another position."""
        self.size = 0
        self._peers = self._shadow = None
        self._parameters, self._theirs = {}, {}
        self._held.forget()

    @property
    def copies(self) -> dict[ShardKey, torch.Tensor]:
        """The copied shards of the rank before this one; none without another rank."""
        return {} if self._shadow is None else self._shadow.tensors

    def agree(self) -> bool:
        """Return True if every rank takes the step. A rank that returned False may have to take it later."""
        assert self._peers is not None, "establish() comes first"
        peers, exchanged = self._peers, False
        parameters = self._parameters.values()
        mine = [torch.zeros_like(_local(one)) if one.grad is None else _local(one.grad) for one in parameters]
        flags = torch.tensor([one.grad is not None for one in parameters], device=self._device)
        their_flags = torch.empty_like(flags)
        try:
            pass_on(
                peers,
                [((peers.rank + 1) % peers.world_size, [*mine, flags])],
                [((peers.rank - 1) % peers.world_size, [*self._theirs.values(), their_flags])],
                self._device,
            )
            exchanged = True
            peers.commit(self._device)
        except PeersLost:
            self._present = their_flags.tolist()
            self._held.keep(parameters)
            if not exchanged:
                self._held.forget()
            return False
        self._present = their_flags.tolist()
        return True

    def follow(self) -> None:
        """Repeat the optimizer step of this rank on the copy that it holds for another one."""
        assert self._shadow is not None, "establish() comes first"
        self._shadow.step(
            {
                name: gradient if present else None
                for (name, gradient), present in zip(self._theirs.items(), self._present, strict=True)
            }
        )

    def take_held_step(self, lr_factor: float) -> None:
        """Take the step that another rank has taken, with the gradients that `agree` kept."""
        self._held.take(lr_factor, self.follow)

    def before_closure(self) -> None:
        """Refuse `optimizer.step(closure)`, whose gradients no other rank gets.

        Raises:
            RedundancyUnsupported: always.
        """
        raise RedundancyUnsupported(
            "REDUNDANCY_UNSUPPORTED: optimizer.step(closure) does not work with elastic.redundancy: neighbour, because "
            "gradients are sent before the step.",
            "Call loss.backward() and then optimizer.step(), or leave elastic.redundancy out of the job file.",
        )


@dataclass(slots=True)
class AdoptedShards:
    """A tensor divided in dimension `dim` into `boxes`, by position, and this rank's part of it: at first its own shard."""

    boxes: Sequence[Box]
    dim: int
    values: torch.Tensor


def adopt(
    plan: RecoveryPlan,
    tensors: Mapping[ShardKey, AdoptedShards],
    held: Mapping[ShardKey, torch.Tensor],
    peers: Peers,
    device: torch.device,
) -> int:
    """Join the copies of lost shards to the shards beside them. Return the bytes that this rank sent or received.

    `held` has the copies on this rank.

    Raises:
        PeersLost: a peer is gone.
    """
    moved = 0
    for one in plan.adoptions:
        if peers.rank not in {one.holder, one.keeper}:
            continue
        copies = dict(held)
        if peers.rank == one.holder != one.keeper:
            moved += pass_on(peers, [(one.keeper, [copies[key] for key in tensors])], [], device)
            continue
        if peers.rank != one.holder:
            copies = {
                key: torch.empty(
                    tensor.boxes[one.position].sizes, dtype=tensor.values.dtype, device=tensor.values.device
                )
                for key, tensor in tensors.items()
            }
            moved += pass_on(peers, [], [(one.holder, list(copies.values()))], device)
        for key, tensor in tensors.items():
            parts = [copies.pop(key), tensor.values]
            is_last = one.position == len(tensor.boxes) - 1  # only this one is kept by the rank before it
            tensor.values = torch.cat(parts[::-1] if is_last else parts, dim=tensor.dim)
    return moved


def pass_on(
    peers: Peers,
    sends: Sequence[tuple[int, Sequence[torch.Tensor]]],
    receives: Sequence[tuple[int, Sequence[torch.Tensor]]],
    device: torch.device,
) -> int:
    """Send tensors to some ranks, and fill others from some ranks. Return the bytes sent and received.

    Raises:
        PeersLost: a peer is gone.
    """
    outgoing = [(rank, one.contiguous()) for rank, tensors in sends for one in tensors if not _is_small(one)]
    incoming = [(rank, one) for rank, tensors in receives for one in tensors if not _is_small(one)]
    outgoing += [(rank, pack(_small(tensors), device)) for rank, tensors in sends]
    buffers = [
        (rank, torch.empty(sum(one.nbytes for one in _small(tensors)), dtype=torch.uint8, device=device))
        for rank, tensors in receives
    ]
    peers.exchange(outgoing, [*incoming, *buffers])
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
        if peers.aborted:  # an aborted transfer ends like a complete one
            raise PeersLost("the transfer was aborted")
    for (_, buffer), (_, tensors) in zip(buffers, receives, strict=True):
        unpack(buffer, _small(tensors))
    return sum(one.nbytes for _, one in (*outgoing, *incoming, *buffers))


def _is_small(one: torch.Tensor) -> bool:
    return one.nbytes < _SMALL_BYTES


def _small(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [one for one in tensors if _is_small(one)]


def _local(one: torch.Tensor) -> torch.Tensor:
    return (one.to_local() if isinstance(one, DTensor) else one).detach()
