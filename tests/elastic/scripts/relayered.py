"""A sharded model whose script changes its layers in the fourth step, or looks at it in ways that change nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from faults import Faults
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--change")
parser.add_argument("--place", default="body", choices=["body", "after forward", "between steps"])
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def change(model: nn.Module) -> None:
    assert isinstance(model, nn.Sequential)
    match options.change:
        case "layer":
            model[2] = nn.Linear(8, 1)
        case "activation":
            model[1] = nn.ReLU()
        case "more":
            model.append(nn.Linear(1, 1))
        case "fewer":
            del model[3]
        case "parameter":
            model[0].weight = nn.Parameter(torch.zeros(8, 4))
        case "parametrization":
            parametrizations.weight_norm(model[2])
        case "tie":
            model[4].weight = model[2].weight


run = headway.init(timeout_s=60)
torch.manual_seed(3)
inputs = torch.randn(48, 4)
plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Identity(), nn.Linear(1, 1, bias=False))
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02)
model, optimizer = run.prepare(plain, optimizer, parallelize=parallelize)
data = run.indices(48, global_batch=12, seed=7)
faults = Faults(run)
steps = run.train_steps(12)
for step in steps:
    faults.in_body()
    if step == 4 and options.place == "body":
        change(model.module)
    batch = inputs[next(data)]
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    if step == 4 and options.place == "after forward":
        change(model.module)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.change is None and step % 2:  # harmless looks, which leave whole parameters in the model
        with torch.no_grad():
            model(batch)
        if step % 3:
            model.module[0].unshard()
    if step == 4 and options.place == "between steps":
        change(model.module)
    if step % 5 == 0:
        whole = {name: one.full_tensor() for name, one in model.module.state_dict().items()}
        assert all(one.isfinite().all() for one in whole.values())
whole = {name: one.full_tensor() for name, one in model.module.state_dict().items()}
torch.save(whole, options.result / f"{run.rank}-of-{run.world_size}.pt")
