"""A sharded regression that changes size in place. Without tensor parallelism, no number of ranks divides its shapes evenly.

Rank 0 notes, for every step, the loss over all samples and digests of the whole state: before the step and after it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from blocks import Block
from digests import digest
from faults import Faults
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

import headway
from headway.train import clip_grad_norm_

WIDTH = 13


class Net(nn.Module):
    """Two blocks between a layer and a head with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = 1.0
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block(WIDTH, options.hidden) for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(2))  # fewer elements than ranks
        self.fixed = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * self.fixed
        for block in self.blocks:
            h = block(h)
        total: Tensor = self.head(h).sum(dim=-1, keepdim=True) + self.shift.sum()
        return total * self.gain


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    if "tp" in options.mesh:
        plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    data = mesh[tuple(name for name in options.mesh if name != "tp")]
    for block in model.get_submodule("blocks"):
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--timeout-s", type=float, default=30.0)
parser.add_argument("--mesh", nargs="+", default=["fsdp"], help="dimensions of the mesh")
parser.add_argument("--hidden", type=int, default=13, help="width that tensor parallelism divides")
parser.add_argument("--several", action="store_true", help="give vectors an optimizer of their own")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=options.timeout_s)
torch.manual_seed(0)
x = torch.randn(40, WIDTH)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = Net()
matrices = {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.1}
vectors = {"params": [one for one in model.parameters() if one.ndim == 1], "weight_decay": 0.0}
parts = [[matrices], [vectors]] if options.several else [[matrices, vectors]]
optimizers = [torch.optim.AdamW(groups, lr=1e-2) for groups in parts]
schedules = [torch.optim.lr_scheduler.LinearLR(one, total_iters=20) for one in optimizers]
model, *prepared = run.prepare(model, *optimizers, *schedules, parallelize=parallelize, mesh=options.mesh)
optimizers, schedules = prepared[: len(parts)], prepared[len(parts) :]
loader = run.loader(TensorDataset(x, y), global_batch=10, seed=3)
faults = Faults(run)
for _epoch in run.epochs(options.epochs):
    for inputs, targets in loader:
        before = digest(model.module, optimizers, schedules)
        if run.steps == 2:  # once, so that new members and rebuilt models have to take it over
            model.module.gain = 0.5
        faults.in_body()
        loss = (model(inputs) - targets).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        for schedule in schedules:
            schedule.step()
        after = digest(model.module, optimizers, schedules)
        with torch.no_grad():
            model.eval()
            whole = (model(x) - y).square().mean().item()
            model.train()
        if run.is_main:
            with (options.result / "steps.txt").open("a") as notes:
                notes.write(f"{run.steps + 1} {run.world_size} {before} {after} {whole!r}\n")
