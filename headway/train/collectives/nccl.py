"""NCCL, the backend of ranks on NVIDIA GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from headway.train.collectives.backend import Rendezvous
from headway.train.collectives.buckets import broadcast
from headway.train.collectives.groups import abort_groups, default_group, forget_groups

_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""Settings of torch's watchdog for a lost peer, which is no error here.

By default the watchdog ends the process, or frees the hung collective, which would then look complete. `abort` frees it
once the gradient is known to be broken. Before that, the watchdog waits for dumps four times as long as the last setting
says, by default for a minute, in which no group can be left.
"""


class Nccl:
    """The `CollectiveBackend` over NCCL.

    Raises:
        RuntimeError: this process has no CUDA device, or torch was built without NCCL.
    """

    runs_on_device = True

    def __init__(self) -> None:
        if not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise RuntimeError("NCCL needs a CUDA device, and a build of torch with NCCL")
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)

    def form(self, rendezvous: Rendezvous) -> None:
        """Form a group, which `connect` connects."""
        default_group("nccl", rendezvous)

    def connect(self, group: dist.ProcessGroup | None = None) -> None:
        """Make the communicator of a group; None: of all ranks.

        This is what `init_process_group(device_id=...)` does, but the group is not bound to the device. With a bound one, a
        rank outside of a new gloo group waits for ever for NCCL to split its communicator, and torch 2.6 makes communicators
        that do not block.
        """
        group = group or dist.group.WORLD
        assert group is not None, "it has been formed"
        if group.size() == 1:
            return
        device = _device()
        backend: Any = group._get_backend(device)  # noqa: SLF001  # torch's own call of it is this
        backend = getattr(backend, "wrapped_pg", backend)  # as with TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend.eager_connect_single_device(device)

    def leave(self) -> None:
        """Abort the communicators: to destroy one, NCCL waits until each member does, and a rank that leaves may not."""
        if _is_default():
            forget_groups()
        if dist.is_initialized():  # over another backend, which the script has chosen
            dist.destroy_process_group()

    def abort(self) -> None:
        """Abort all groups of the process, unless the script has made the default group over another backend."""
        if _is_default():
            abort_groups("nccl")

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        """Broadcast from the source's device, and wait until this rank's device has finished."""
        broadcast(tensors, rank=rank, source=source, receivers=receivers, device=_device())
        torch.cuda.synchronize()


def _is_default() -> bool:
    return dist.is_initialized() and dist.get_backend() == "nccl"


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
