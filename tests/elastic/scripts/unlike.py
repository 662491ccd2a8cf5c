"""A classifier whose script does what makes ranks unlike: other lengths, other frozen layers, groups that come later."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from faults import Faults
from torch import nn
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=40)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--unlike", choices=["samples", "seed", "frozen"], help="what rank 1 has otherwise")
parser.add_argument("--group-at", type=int, help="step that adds a group of parameters")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=60)
torch.manual_seed(3)
unlike = options.unlike if run.rank == 1 else None
samples = options.samples + (8 if unlike == "samples" else 0)
inputs = torch.randn(samples, 4)
body, head = nn.Linear(4, 6), nn.Linear(6, 1)
body.requires_grad_(options.group_at is None)
if unlike == "frozen":
    head.bias.requires_grad_(False)
parameters = [one for one in (*body.parameters(), *head.parameters()) if one.requires_grad or unlike]
optimizer = torch.optim.SGD(parameters, lr=0.1)
model, optimizer = run.prepare(nn.Sequential(body, head), optimizer)
seed = options.seed + (unlike == "seed")
data = run.loader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=8, seed=seed)
faults = Faults(run)
for step in run.train_steps(16):
    faults.in_body()
    if options.group_at is not None and step >= options.group_at and len(optimizer.param_groups) == 1:
        body.requires_grad_(True)
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.05})
    for batch, target in data:
        optimizer.zero_grad()
        (model(batch) - target).square().mean().backward()
        optimizer.step()
torch.save(model.state_dict(), options.result / f"{run.rank}-of-{run.world_size}.pt")
