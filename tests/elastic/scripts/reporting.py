"""Training that reports this rank's number in each step and after each epoch, and a value of rank 0 alone."""

from __future__ import annotations

import argparse

import torch
from faults import Faults
from torch import nn
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30)
model = nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
loader = run.loader(TensorDataset(torch.ones(40, 1)), global_batch=8)
faults = Faults(run)
run.report(before=run.rank)
for epoch in run.epochs(options.epochs):
    for (batch,) in loader:
        faults.in_body()
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        run.report(rank=run.rank, size=run.world_size)
        if run.is_main:
            run.report(main=run.rank)
    run.report(epoch_rank=run.rank, epoch=epoch)
run.report(after=10 * run.rank)
