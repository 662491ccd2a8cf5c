"""A small regression on a model that FSDP2 shards, with batches that do not divide evenly.

Rank 0 notes the mean loss over all samples after each epoch.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from faults import Faults
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import headway


class Net(nn.Module):
    """A model that returns its loss beside the outputs from which the loss follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.layers(inputs)
        return (outputs - targets).square().mean(), outputs


parser = argparse.ArgumentParser()
parser.add_argument("--sharded", type=int, required=True)
parser.add_argument(
    "--slow-s", type=float, default=0.0, help="time that rank 1 takes longer after its ninth body"
)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

torch.manual_seed(0)
run = headway.init(timeout_s=30)
x = torch.randn(53, 8)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = Net()
if options.sharded:
    mesh = dist.init_device_mesh("cpu", (run.world_size,)) if "RANK" in os.environ else None
    fully_shard(model, mesh=mesh)  # by hand as the guide writes it, without a mesh
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(TensorDataset(x, y), global_batch=16, max_local_batch=5, seed=3, balance=False)
faults = Faults(run)
bodies = 0
with (options.result / f"epochs-{os.getpid()}.txt").open("w") as notes:
    for epoch in run.epochs(12):
        for inputs, targets in loader:
            faults.in_body()
            bodies += 1
            loss, _ = model(inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if bodies == 9 and run.rank == 1:
                time.sleep(options.slow_s)
        with torch.no_grad():
            loss, _ = model(x, y)
            notes.write(f"{epoch} {loss.item()!r}\n")
        notes.flush()
