"""The interface of a collective backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

import torch
from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The ranks of a default group, and its time limits: `connect` to form it, `timeout` for each operation in it.

    The ranks meet in `store`. Without one, the environment variables of torchrun say who they are and where they meet.
    """

    connect: timedelta
    timeout: timedelta
    store: Store | None = None
    rank: int = -1
    world_size: int = -1


class CollectiveBackend(Protocol):
    """A library that carries torch's default group: gloo, NCCL, or another.

    The default group averages gradients. Agreements between ranks use a gloo group of their own, with any backend.
    A process has one backend object, which forms the group of each generation in turn. A constructor that raises an
    exception means that this machine cannot use the backend. The methods raise RuntimeError when a peer is lost.
    """

    runs_on_device: bool
    """True if operations may still be in progress on a device when the calls of torch have returned."""

    def form(self, rendezvous: Rendezvous) -> None:
        """Form torch's default group over this library."""

    def leave(self) -> None:
        """Leave all groups of the process without waiting for a peer. No operation is in progress on any member."""

    def abort(self) -> None:
        """End every wait in the default group that does not end when the group's connections close.

        Any thread may call it while another one waits, or when no group exists. Afterwards the library closes the TCP
        connections that the process opened while the group formed.
        """

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        """Fill the receivers' tensors with those of rank `source`, and wait until that is done.

        Every rank of the default group calls it, in the same order as its other operations; `rank` is the caller. A rank that
        neither sends nor receives passes no tensors, and may have to take part. The tensors are contiguous and lie where the
        group works.
        """


@runtime_checkable
class Connecting(Protocol):
    """A `CollectiveBackend` whose members would connect only at the first operation, for which all of them must come.

    A membership change begins with operations between some of the members, which would wait for the others for ever.
    """

    def connect(self, group: ProcessGroup | None = None) -> None:
        """Connect all members of a group (None: of the default group), each of which calls it and is known to be within reach.

        RuntimeError is raised when a peer is lost, or the sockets that the process opens meanwhile are closed.
        """
