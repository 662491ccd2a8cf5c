"""A sharded regression that changes size in place, with shapes that no number of ranks divides evenly.

Rank 0 notes, for every step, the loss over all samples and digests of the whole state: before the step and after it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from faults import Faults
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import headway

WIDTH = 13


class Block(nn.Module):
    """A layer with a buffer outside of the state, and a norm with a buffer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("factor", torch.full((), 0.5), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return h + self.factor * torch.tanh(self.layer(h))  # type: ignore[operator]


class Net(nn.Module):
    """Two blocks between a layer and a head with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(2))  # fewer elements than ranks
        self.fixed = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * self.fixed
        for block in self.blocks:
            h = block(h)
        total: Tensor = self.head(h).sum(dim=-1, keepdim=True) + self.shift.sum()
        return total


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model.get_submodule("blocks"):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def digest() -> str:
    """The digest of the whole state, equal on all ranks. Every rank must call it."""
    for module in model.module.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after an evaluation the root is whole
    found = hashlib.blake2b(digest_size=8)
    for name, parameter in model.module.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key, value in (("", parameter), *sorted(state.items())):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            found.update(
                f"{name} {key} {whole.dtype} ".encode() + bytes(whole.detach().tolist().__repr__(), "ascii")
            )
    for name, buffer in model.module.named_buffers():
        found.update(f"{name} {buffer.tolist()}".encode())
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    found.update(f"{groups} {schedule.state_dict()}".encode())
    return found.hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--timeout-s", type=float, default=30.0)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=options.timeout_s)
torch.manual_seed(0)
x = torch.randn(40, WIDTH)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = Net()
norms = [one for one in model.parameters() if one.ndim == 1]
optimizer = torch.optim.AdamW(
    [
        {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.1},
        {"params": norms, "weight_decay": 0.0},
    ],
    lr=1e-2,
)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
model, optimizer, schedule = run.prepare(model, optimizer, schedule, parallelize=parallelize)
loader = run.loader(TensorDataset(x, y), global_batch=10, seed=3)
faults = Faults(run)
for _epoch in run.epochs(options.epochs):
    for inputs, targets in loader:
        before = digest()
        faults.in_body()
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        after = digest()
        with torch.no_grad():
            model.eval()
            whole = (model(x) - y).square().mean().item()
            model.train()
        if run.is_main:
            with (options.result / "steps.txt").open("a") as notes:
                notes.write(f"{run.steps + 1} {run.world_size} {before} {after} {whole!r}\n")
