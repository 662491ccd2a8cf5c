"""Train a sharded network (FSDP2) with Headway until killed. Rank 0 writes a line of JSON for each step.

    sharding.py SIZE FILE

`benchmarks.sharded` starts it. A line has the end time of the step, the number of ranks, the loss of rank 0 over one fixed
sample, checksums of the whole state at the start and the end of the step, and the peaks of memory within the step and
between the previous step and this one.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from networks import adamw, network, samples
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import headway
from headway.train.sharding.boxes import Box
from headway.train.sharding.checksum import checksum

BATCH = 16


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def state_checksum(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Return the sum of the checksums of all shards, which depends on the place of each element in its whole tensor."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for parameter in model.parameters():
        for value in (parameter, *optimizer.state.get(parameter, {}).values()):
            if isinstance(value, DTensor):
                sizes, offsets = compute_local_shape_and_global_offset(
                    value.shape, value.device_mesh, value.placements
                )
                total += checksum(value.to_local(), Box(tuple(offsets), tuple(sizes)), {0})
    dist.all_reduce(total)
    return int(total)


def take_peak() -> int:
    """Return the peak of resident memory since the last call, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


size, file = sys.argv[1], Path(sys.argv[2])
run = headway.init()
torch.manual_seed(0)
model = network(size)
model, optimizer = run.prepare(model, adamw(model), parallelize=parallelize)
loader = run.loader(samples(size), global_batch=BATCH, balance=False)
for _ in run.epochs(10_000):
    for (x,) in loader:
        between = take_peak()
        before = state_checksum(model, optimizer, run.device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for module in model.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        after = state_checksum(model, optimizer, run.device)
        line = {
            "at_s": time.monotonic(),
            "world_size": run.world_size,
            "loss": loss.item(),
            "before": before,
            "after": after,
            "peak_between": between,
            "peak_within": take_peak(),
        }
        if run.is_main:
            with file.open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(line) + "\n")
