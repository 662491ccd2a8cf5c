"""Accumulates over 7 batches on its own: the weight ends at 1 for each 7 batches. It trains slowly while the file HURRY is not there."""

import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import headway

EVERY, BATCHES = 7, 700
hurry = Path(os.environ["HURRY"])
run = headway.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
loader = run.loader(TensorDataset(-torch.ones(BATCHES * 4, 1)), global_batch=4, num_workers=0)
for _ in run.epochs(1):
    for number, (x,) in enumerate(loader):
        (model(x).mean() / EVERY).backward()
        if (number + 1) % EVERY == 0:
            optimizer.step()
            optimizer.zero_grad()
        if not hurry.exists():
            time.sleep(0.1)
if run.is_main:
    Path(os.environ["RESULT"]).write_text(f"{next(model.parameters()).item():.4f}", encoding="utf-8")
