"""Train a linear regression on noisy data to a progress target, with a batch that may change.

    searching.py EPOCHS SAMPLES BATCH MOST SAMPLE_S STEP_S NOISE

`benchmarks.search` starts it. Every sample waits SAMPLE_S seconds and every step STEP_S, so larger batches and more ranks are
faster by known amounts, whatever else the machine does. The labels have noise of standard deviation NOISE, which gives the
gradients their noise scale.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

WIDTH = 16


class Waiting(nn.Module):
    """Linear model whose forward pass takes a given time."""

    def __init__(self, sample_s: float, step_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1, bias=False)
        self.sample_s, self.step_s = sample_s, step_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.step_s + len(x) * self.sample_s)
        return self.linear(x)


epochs, samples, batch, most = map(int, sys.argv[1:5])
sample_s, step_s, noise = map(float, sys.argv[5:8])
torch.set_num_threads(1)
run = headway.init()
torch.manual_seed(0)
inputs = torch.randn(samples, WIDTH)
labels = inputs @ torch.ones(WIDTH, 1) + noise * torch.randn(samples, 1)
model = Waiting(sample_s, step_s)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
loader = run.loader(TensorDataset(inputs, labels), global_batch=batch, max_global_batch=most, balance=False)
for _ in run.epochs(epochs):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.report(loss=float(loss))
