"""A model of three layers that a script freezes and unfreezes while it trains, as gradual unfreezing does."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from faults import Faults
from torch import nn

import headway

parser = argparse.ArgumentParser()
parser.add_argument(
    "--in-body", action="store_true", help="set it after the batch was taken, in each micro-batch"
)
parser.add_argument("--once", action="store_true", help="set it in the step of the change, and never again")
parser.add_argument("--by-rank", action="store_true", help="rank 1 changes nothing")
parser.add_argument("--max-local", type=int)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=60)
torch.manual_seed(3)
inputs = torch.randn(60, 4, dtype=torch.float64)
first, second, head = (nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1))
model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head).double()
CHANGES = {0: (), 5: (second,), 9: (first, second), 15: (first,), 19: (first, second)}


def set_trained(step: int) -> None:
    begun = max(number for number in CHANGES if number <= step)
    if (options.by_rank and run.rank == 1) or (options.once and begun != step):
        return
    for layer in (first, second):
        layer.requires_grad_(layer in CHANGES[begun])


for layer in (first, second):
    layer.requires_grad_(False)
wrapped, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1))
data = run.indices(60, global_batch=12, max_local_batch=options.max_local, seed=7)
faults = Faults(run)
for step in run.train_steps(options.steps):
    faults.in_body()
    if not options.in_body:
        set_trained(step)
    for indices in data:
        if options.in_body:
            set_trained(step)
        optimizer.zero_grad()
        batch = inputs[indices]
        (wrapped(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
torch.save(model.state_dict(), options.result / f"{run.rank}-of-{run.world_size}.pt")
