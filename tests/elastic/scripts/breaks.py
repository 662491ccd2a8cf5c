"""A loop by steps of which rank 1 leaves the inner loop alone, before it has trained the batch."""

from __future__ import annotations

import torch

import headway

run = headway.init(timeout_s=120)
net = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
draws = run.indices(240, global_batch=12, seed=7)
for step in run.train_steps(60):
    for batch in draws:
        if run.rank == 1 and step == 22:
            break
        model(torch.ones(len(batch), 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
