"""Training by progress of the model of `counting.py`.

The parameters of samples count as those of `count.py`, and the shared one counts the steps, each times the factor of its
learning rate.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from counting import Counts
from faults import Faults
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--signal", type=float, required=True)
parser.add_argument("--until")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30)
model = Counts(options.samples, options.signal)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
by_step, by_epoch = (LambdaLR(optimizer, lambda _: 1.0) for _ in range(2))
wrapped, optimizer, by_step, by_epoch = run.prepare(model, optimizer, by_step, by_epoch)
loader = run.loader(TensorDataset(torch.arange(options.samples)), global_batch=options.batch, seed=7)
faults = Faults(run)
for epoch in run.epochs(options.epochs, until=options.until):
    for (indices,) in loader:
        loss = wrapped(indices).mean()
        optimizer.zero_grad()
        faults.in_body()
        loss.backward()
        optimizer.step()
        by_step.step()
    by_epoch.step()
    faults.after_loop(epoch)
torch.save(
    {
        "counts": model.counts.detach(),
        "steps": -model.shared.item() / model.scale,
        "progress": run.progress,
        "by_step": by_step.last_epoch,
        "by_epoch": by_epoch.last_epoch,
    },
    options.result / f"{run.rank}-of-{run.world_size}.pt",
)
