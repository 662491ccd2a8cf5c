"""NCCL, the backend of ranks on NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from headway.train.collectives.backend import Rendezvous
from headway.train.collectives.groups import default_group


class Nccl:
    """The `CollectiveBackend` over NCCL.

    Raises:
        RuntimeError: this process has no CUDA device, or torch was built without NCCL.
    """

    def __init__(self) -> None:
        if not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise RuntimeError("NCCL needs a CUDA device, and a build of torch with NCCL")

    def form(self, rendezvous: Rendezvous) -> None:
        """Form a group that connects at its first operation."""
        default_group("nccl", rendezvous)

    def abort(self) -> None:
        """Abort all groups of the process, unless the script has made the default group over another backend."""
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001  # torch's own restarts use it

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        """Send between devices, and wait until the device has finished."""
        for one in tensors:
            if rank == source:
                for receiver in receivers:
                    dist.send(one, dst=receiver)
            else:
                dist.recv(one, src=source)
        torch.cuda.synchronize()
