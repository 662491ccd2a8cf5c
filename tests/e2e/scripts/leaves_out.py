"""Leaves out the backward pass of the half of a batch in which one sample is no number, as scripts do that look at their loss."""

import torch

import headway

rows = torch.ones(48, 1)
rows[5] = torch.nan
run = headway.init()
model = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = run.loader(range(48), global_batch=8, max_local_batch=4, num_workers=0)
for _ in run.epochs(1):
    for batch in loader:
        loss = model(rows[batch]).square().mean()
        if loss.isfinite():
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
