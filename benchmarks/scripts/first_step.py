"""Take one training step, and print the time at its end (Unix time). `benchmarks.start` and `benchmarks.soak` start it."""

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

run = headway.init()
model = nn.Linear(8, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = run.loader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), global_batch=64)
for _ in run.epochs(1):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"first step at {time.time()}", flush=True)
