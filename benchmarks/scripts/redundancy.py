"""Train a sharded network (FSDP2) with Headway until killed. Rank 0 writes the seconds of each step to a file.

    redundancy.py SIZE BATCH FILE

`benchmarks.redundancy` starts it with copies of the shards, and without. BATCH is the global batch.
"""

import sys
import time
from pathlib import Path

import torch
from networks import adamw, network, samples
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import headway


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


size, batch, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
run = headway.init()
torch.manual_seed(0)
model = network(size)
model, optimizer = run.prepare(model, adamw(model), parallelize=parallelize)
loader = run.loader(samples(size), global_batch=batch, balance=False)
for _ in run.epochs(10_000):
    for (x,) in loader:
        began_s = time.perf_counter()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if run.is_main:
            with file.open("a", encoding="utf-8") as notes:
                notes.write(f"{time.perf_counter() - began_s}\n")
