"""A small regression with AdamW and a schedule, which notes the loss of every sample it trains on.

One line per sample, in a file per process: epoch, sample, loss before the step.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from faults import Faults
from torch import nn
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=301)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--max-local", type=int)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

torch.manual_seed(0)
run = headway.init(timeout_s=30)
x = torch.randn(options.samples, 8)
y = torch.sin(x[:, :1] + x[:, 1:2])
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)
model, optimizer, schedule = run.prepare(model, optimizer, schedule)
loader = run.loader(
    TensorDataset(torch.arange(options.samples), x, y),
    global_batch=options.batch,
    max_local_batch=options.max_local,
    seed=3,
)
faults = Faults(run)
with (options.result / f"losses-{os.getpid()}.txt").open("w") as notes:
    for epoch in run.epochs(options.epochs):
        for indices, inputs, targets in loader:
            faults.in_body()
            losses = (model(inputs) - targets).square().squeeze(1)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            schedule.step()
            for index, loss in zip(indices.tolist(), losses.tolist(), strict=True):
                notes.write(f"{epoch} {index} {loss!r}\n")
            notes.flush()
        run.report(last_loss=losses.mean())
