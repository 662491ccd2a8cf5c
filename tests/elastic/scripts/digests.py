"""Digests of the whole state of a sharded training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def digest(model: nn.Module, optimizers: Sequence[Optimizer], schedules: Sequence[Any]) -> str:
    """The digest of model, optimizers and schedules, equal on all ranks. Every rank must call it."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after an evaluation the root is whole
    found = hashlib.blake2b(digest_size=8)
    for name, parameter in model.named_parameters():
        states = [optimizer.state.get(parameter, {}) for optimizer in optimizers]
        values = [("", parameter), *(pair for state in states for pair in sorted(state.items()))]
        for key, value in values:
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            found.update(f"{name} {key} {whole.dtype} {whole.detach().tolist()}".encode())
    for name, buffer in model.named_buffers():
        found.update(f"{name} {buffer.tolist()}".encode())
    groups = [
        {**group, "params": len(group["params"])}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    found.update(f"{groups} {[schedule.state_dict() for schedule in schedules]}".encode())
    return found.hexdigest()
