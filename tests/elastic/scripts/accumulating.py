"""A loop that accumulates over `--every` batches on its own. Each batch adds exactly 1 / every to the only weight."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from faults import Faults
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, required=True)
parser.add_argument("--batches", type=int, required=True)
parser.add_argument("--result", type=Path)
parser.add_argument(
    "--first", action="store_true", help="step in the first batch, and then in every --every-th"
)
options = parser.parse_args()
run = headway.init(timeout_s=120)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
loader = run.loader(TensorDataset(-torch.ones(options.batches * 4, 1)), global_batch=4, num_workers=0)
faults = Faults(run)
for _ in run.epochs(1):
    for number, (x,) in enumerate(loader):
        faults.in_body()
        (model(x).mean() / options.every).backward()
        if (number + (not options.first)) % options.every == 0:
            optimizer.step()
            optimizer.zero_grad()
print(f"rank {run.rank} weight {next(model.parameters()).item():.4f}", flush=True)  # noqa: T201  # the test reads it
