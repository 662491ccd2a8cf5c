"""A regression in pipeline stages that changes size in place. With `--plain` one process trains the whole model without them.

Rank 0 notes, for every step, the loss over all samples and digests of the whole state: before the step and after it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from blocks import Block
from faults import Faults
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

import headway
from headway.train import clip_grad_norm_

WIDTH, HIDDEN, BLOCKS = 13, 12, 3


class Net(nn.Module):
    """Blocks between a layer and a head. A stage has some of the layers; the others are None."""

    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Linear | None = nn.Linear(WIDTH, WIDTH, bias=False)
        self.fixed: nn.Parameter | None = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.blocks = nn.ModuleDict({str(number): Block(WIDTH, HIDDEN) for number in range(BLOCKS)})
        self.shift: nn.Parameter | None = nn.Parameter(torch.zeros(2))  # fewer elements than ranks
        self.head: nn.Linear | None = nn.Linear(WIDTH, 1)

    def forward(self, h: Tensor) -> Tensor:
        if self.first is not None:
            h = self.first(h) * self.fixed
        for block in self.blocks.values():
            h = block(h)
        if self.head is not None and self.shift is not None:
            h = self.head(h) + self.shift.sum()
        return h


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    assert isinstance(model, Net)
    stage, stages = mesh.get_local_rank("pp"), mesh["pp"].size()
    for number in range(BLOCKS):
        if number * stages // BLOCKS != stage:
            del model.blocks[str(number)]
    if stage > 0:
        model.first = model.fixed = None
    if stage < stages - 1:
        model.head = model.shift = None
    if "tp" in options.mesh:
        plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    data = mesh[tuple(name for name in options.mesh if name not in {"pp", "tp"})]
    for block in model.blocks.values():
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


def digest() -> str:
    """The digest of the whole state, equal on all ranks. Every rank must call it."""
    for module in model.module.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after an evaluation the root is whole
    groups = {
        id(one): number for number, group in enumerate(optimizer.param_groups) for one in group["params"]
    }
    lines = {
        f"{number} { ({**group, 'params': None}) } {schedule.state_dict()}"
        for number, group in enumerate(optimizer.param_groups)
    }
    for name, parameter in model.module.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key, value in (("", parameter), *sorted(state.items())):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            lines.add(f"{name} {key} {groups[id(parameter)]} {whole.dtype} {whole.detach().tolist()!r}")
    for name, buffer in model.module.named_buffers():
        lines.add(f"{name} {buffer.tolist()}")
    everyone: list[set[str]] = [lines]
    if dist.is_initialized():
        everyone = [set() for _ in range(run.world_size)]
        dist.all_gather_object(everyone, lines)
    return hashlib.blake2b("".join(sorted(set.union(*everyone))).encode(), digest_size=8).hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--mesh", nargs="+", default=["pp", "fsdp"], help="dimensions of the mesh")
parser.add_argument("--micro-batches", type=int, default=4)
parser.add_argument("--max-local-batch", type=int)
parser.add_argument(
    "--frozen", type=int, default=0, help="first layers that are not trained, as in fine-tuning"
)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30.0)
torch.manual_seed(0)
x = torch.randn(40, WIDTH)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = Net()
for layer in [model.first, *model.blocks.values()][: options.frozen]:
    layer.requires_grad_(False)  # type: ignore[union-attr]
biases = [one for one in model.parameters() if one.ndim == 1]
optimizer = torch.optim.AdamW(
    [
        {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in biases if one is not model.shift], "weight_decay": 0.0},
        {"params": [model.shift], "weight_decay": 0.2},  # a group that the first stage has none of
    ],
    lr=1e-2,
)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
sharding = {} if options.plain else {"parallelize": parallelize, "mesh": options.mesh}
model, optimizer, schedule = run.prepare(model, optimizer, schedule, **sharding)
loader = run.loader(
    TensorDataset(x, y), global_batch=10, max_local_batch=options.max_local_batch, seed=3, balance=False
)
pipeline = run.pipeline(nn.functional.mse_loss, micro_batches=options.micro_batches)
faults = Faults(run)
before = ""
for _epoch in run.epochs(options.epochs):
    for inputs, targets in loader:
        before = before or digest()
        faults.in_body()
        if options.plain:
            nn.functional.mse_loss(model(inputs), targets).backward()
        else:
            pipeline.step(inputs, target=targets)
        if run.accumulating:
            continue
        clip_grad_norm_(model.parameters(), 0.1)  # less than any norm of this training
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        after = digest()
        model.eval()
        if options.plain:
            with torch.no_grad():
                whole = nn.functional.mse_loss(model(x), y)
        else:
            whole = pipeline.evaluate(x, target=y)
        model.train()
        if run.is_main:
            line = f"{run.steps + 1} {run.world_size} {before} {after} {whole.item()!r}\n"
            with (options.result / "steps.txt").open("a") as notes:
                notes.write(line)
        before = ""
