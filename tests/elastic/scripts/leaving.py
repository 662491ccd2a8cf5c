"""A script of which one rank leaves its training loop by `break` after `--leaves` steps, and all others after `--all`."""

from __future__ import annotations

import argparse

import torch

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--leaves", type=int, required=True)
parser.add_argument("--all", type=int, required=True)
options = parser.parse_args()
run = headway.init(timeout_s=60)
net = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
data = run.indices(60, global_batch=12, seed=7)
inputs = torch.randn(60, 4)
for step in run.train_steps(10):
    for indices in data:
        model(inputs[indices]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step + 1 == (options.leaves if run.rank == 1 else options.all):
        break
