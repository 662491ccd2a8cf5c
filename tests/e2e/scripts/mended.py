"""Fails as soon as it has a checkpoint of its own while the file MENDED is not there, and trains to its end once it is."""

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch.utils.data import TensorDataset

import headway

EPOCHS, SAMPLES = 3, 96
kept = Path(urlsplit(os.environ["HEADWAY_CHECKPOINT_URI"]).path)
mended = Path(os.environ["MENDED"])

run = headway.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
loader = run.loader(TensorDataset(torch.randn(SAMPLES, 4)), global_batch=4)

for _ in run.epochs(EPOCHS):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if not mended.exists():
            time.sleep(0.05)
            if list(kept.glob("*/manifest.json")):
                raise RuntimeError("the data has a hole")
