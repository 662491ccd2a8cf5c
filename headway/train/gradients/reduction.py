"""The parts of torch's data parallelism that the reduction of gradients uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_NO_SYNC: dict[str, bool] = {
    # `send_buffers` replaces it, because it survives a lost peer.
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}


def data_parallel(
    module: nn.Module, device: torch.device, hook: Callable[[Any], torch.futures.Future[torch.Tensor]]
) -> DistributedDataParallel:
    """Return the module with a reduction by `hook` of the parameters that train now. It communicates with no peer."""
    made = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        init_sync=False,
        gradient_as_bucket_view=True,  # avoids a copy of each gradient into its bucket and back
        **_NO_SYNC,  # type: ignore[arg-type]
    )
    # torch reads the hook's annotations, and accepts none or its own class, but not the class's name.
    made.register_comm_hook(None, lambda _state, bucket: hook(bucket))
    return made


def send_buffers(buffers: Sequence[torch.Tensor]) -> None:
    """Fill the buffers with those of rank 0, as DDP does."""
    if buffers:
        dist._broadcast_coalesced(dist.group.WORLD, buffers, 1 << 28, 0)  # type: ignore[arg-type,attr-defined]  # noqa: SLF001


def after_backward(act: Callable[[], None]) -> None:
    """Call `act` when the present backward pass ends."""
    torch.autograd.Variable._execution_engine.queue_callback(act)  # noqa: SLF001
