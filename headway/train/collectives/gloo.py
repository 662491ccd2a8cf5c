"""Gloo, the backend of ranks on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from headway.train.collectives.backend import Rendezvous
from headway.train.collectives.groups import default_group


class Gloo:
    """The `CollectiveBackend` over gloo."""

    runs_on_device = False

    def form(self, rendezvous: Rendezvous) -> None:
        """Form a group whose members are all connected."""
        default_group("gloo", rendezvous)

    def leave(self) -> None:
        """Destroy the groups: gloo closes its connections."""
        dist.destroy_process_group()

    def abort(self) -> None:
        """Do nothing: gloo has no abort. Closed connections end most of its waits, and `Waits` ends the others."""

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        """Send through host memory, because point-to-point calls of gloo accept only CPU tensors."""
        for one in tensors:
            on_host = one.cpu()
            if rank == source:
                for receiver in receivers:
                    dist.send(on_host, dst=receiver)
            elif rank in receivers:
                dist.recv(on_host, src=source)
                one.copy_(on_host)
