"""Trains with a loss that its parameter x decides, at a speed that follows the slots until the file HURRY is there."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

hurry = Path(os.environ["HURRY"])
x = float(os.environ["HEADWAY_PARAM_X"])
run = headway.init()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(TensorDataset(torch.randn(160, 8)), global_batch=16)
for epoch in run.epochs(200):
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not hurry.exists():
            time.sleep(0.01 * len(batch))
    run.report(loss=(x - 3) ** 2 + 1 / (epoch + 1))
