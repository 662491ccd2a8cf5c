"""A loop by steps of which rank 1 leaves the inner loop alone, `before` or `after` its backward pass."""

from __future__ import annotations

import sys

import torch

import headway

run = headway.init(timeout_s=120)
net = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
draws = run.indices(240, global_batch=12, seed=7)
for step in run.train_steps(60):
    for batch in draws:
        leaves = run.rank == 1 and step == 22
        if leaves and sys.argv[1] == "before":
            break
        model(torch.ones(len(batch), 4)).square().mean().backward()
        if leaves:
            break
        optimizer.step()
        optimizer.zero_grad()
