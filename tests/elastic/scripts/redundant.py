"""A sharded regression whose shards have copies or replicas, with faults at exact places of a step.

Rank 0 notes, for every step that it takes, a digest of the whole state and the loss over all samples before the step, and
the norm of the gradient, which it reports, too.

`KILLS` is a JSON list of [rank at the start, step, place]. The process kills itself there. At `unsure` it takes the commit of
the step for a lost peer instead.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from digests import digest
from faults import Faults
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import headway
from headway.train import clip_grad_norm_

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=1e-2, fused=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-2, amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=3e-2, momentum=0.9, nesterov=True),
    "rprop": lambda groups: torch.optim.Rprop(groups, lr=1e-2),
}


class Net(nn.Module):
    """A layer and two blocks, with parameters that no number of ranks divides evenly, and one of few elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(options.width, options.width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(options.width, options.width) for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(2))
        self.fixed = nn.Parameter(torch.ones(options.width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x) * self.fixed
        for number, block in enumerate(self.blocks):
            h = h + torch.tanh(block(h))
            if number == 0 and torch.is_grad_enabled():
                strike("forward")
                h.register_hook(lambda _: strike("backward"))  # type: ignore[no-untyped-call]
        return h.sum(dim=-1, keepdim=True) + self.shift.sum()


class WithinStep(TorchDispatchMode):
    """Faults at the operations with which `optimizer.step` exchanges and commits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d.allreduce_"):
            strike("before commit")
        result = func(*args, **(kwargs or {}))
        if name.startswith("c10d.send"):
            strike("exchange")
        if name.startswith("c10d.allreduce_") and place_now() == "unsure":
            dist.Work.unbox(result[1]).wait()  # type: ignore[attr-defined]
            raise RuntimeError("a peer is lost")
        return result


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    if "tp" in options.mesh:
        parallelize_module(model, mesh["tp"], {"blocks.*": ColwiseParallel(output_layouts=Replicate())})
    data = mesh[tuple(name for name in options.mesh if name != "tp")]
    for block in model.get_submodule("blocks"):
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


def place_now() -> str | None:
    return places.get(run.steps + 1)


def strike(place: str) -> None:
    if place_now() == place:
        os.kill(os.getpid(), signal.SIGKILL)


def backward(inputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the gradient, before the step or as its closure."""
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    return loss.detach()


parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
parser.add_argument("--closure", action="store_true")
parser.add_argument("--mesh", nargs="+", default=["fsdp"], help="dimensions of the mesh")
parser.add_argument(
    "--width", type=int, default=13, help="width of the layers, which tensor parallelism divides"
)
parser.add_argument("--timeout-s", type=float, default=30.0)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=options.timeout_s)
first_rank = run.rank
places = {
    step: place for rank, step, place in json.loads(os.environ.get("KILLS", "[]")) if rank == first_rank
}
torch.manual_seed(0)
x = torch.randn(40, options.width)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = Net()
matrices = [one for one in model.parameters() if one.ndim > 1]
others = [one for one in model.parameters() if one.ndim == 1]
optimizer = OPTIMIZERS[options.optimizer]([{"params": matrices}, {"params": others, "lr": 5e-3}])
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
model, optimizer, schedule = run.prepare(
    model, optimizer, schedule, parallelize=parallelize, mesh=options.mesh
)
optimizer.register_step_pre_hook(lambda *_: strike("after commit"))
optimizer.register_step_post_hook(lambda *_: strike("after own step"))
loader = run.loader(TensorDataset(x, y), global_batch=10, seed=3)
faults = Faults(run)
for _epoch in run.epochs(4):
    for inputs, targets in loader:
        strike("between steps")
        faults.in_body()
        with torch.no_grad():
            whole = (model(x) - y).square().mean().item()
        before = digest(model.module, [optimizer], [schedule])
        if not options.closure:
            backward(inputs, targets)
        strike("before clipping")
        norm = clip_grad_norm_(model.parameters(), 1.0)
        run.report(norm=norm)
        with WithinStep() if run.steps + 1 in places else nullcontext():
            optimizer.step(partial(backward, inputs, targets) if options.closure else None)
        optimizer.zero_grad(set_to_none=False)
        schedule.step()
        if run.is_main and run.stepped:
            with (options.result / "steps.txt").open("a") as notes:
                notes.write(f"{run.steps + 1} {run.world_size} {before} {whole!r} {norm.item()!r}\n")
