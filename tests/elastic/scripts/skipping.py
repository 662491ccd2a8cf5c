"""A loop that steps the optimizer in its own rhythm, as scripts do that accumulate by themselves."""

from __future__ import annotations

import argparse

import torch
from faults import Faults

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, required=True)
parser.add_argument("--apart", action="store_true", help="count from another number on each rank")
options = parser.parse_args()

run = headway.init(timeout_s=120)
model = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = run.indices(100, global_batch=4)
number = run.rank if options.apart else 0
faults = Faults(run)
for _ in run.train_steps(12):
    faults.in_body()
    for indices in data:
        model(indices.float().unsqueeze(1) / 100).mean().backward()
        number += 1
        if number % options.every == 0:
            optimizer.step()
            optimizer.zero_grad()
