"""The parts of the FSDP2 recipe beside its training loop: parallelisation, optimizer, data and evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from tiny import Sums, collate
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 12
TRAINING, TEST = Sums(300, seed=1, digits=4), Sums(48, seed=2, digits=4)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parallelize(net: nn.Module, mesh: DeviceMesh) -> None:
    """Checkpoint the activations of each block, and shard each block by itself, in bfloat16 with sums in float32."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = net.get_submodule("model.layers")
    for name, block in list(layers.named_children()):
        wrapped = checkpoint_wrapper(block)
        layers.register_module(name, wrapped)
        fully_shard(wrapped, mesh=mesh, mp_policy=precision)
    fully_shard(net, mesh=mesh, mp_policy=precision)


def mesh() -> DeviceMesh:
    """Return the mesh of all processes that torchrun has started."""
    return init_device_mesh(DEVICE, (int(os.environ["WORLD_SIZE"]),))


def optimizers(net: nn.Module) -> tuple[torch.optim.Optimizer, LinearLR]:
    """Return the optimizer and its schedule, with a warm-up."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return optimizer, LinearLR(optimizer, 0.1, total_iters=10)


def batches() -> Iterator[Any]:
    """Yield this process's part of each global batch, epoch after epoch."""
    sampler = DistributedSampler(TRAINING)
    local = BATCH // int(os.environ["WORLD_SIZE"])
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in DataLoader(TRAINING, local, sampler=sampler, collate_fn=collate):
            yield {name: value.to(DEVICE) for name, value in batch.items()}
        epoch += 1


@torch.no_grad()
def evaluate(net: nn.Module) -> float:
    """Return the mean loss of the test data."""
    batch = collate([TEST[index] for index in range(len(TEST))])
    return net(**{name: value.to(DEVICE) for name, value in batch.items()}).loss.item()
