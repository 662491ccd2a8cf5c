"""Train one epoch in steps of fixed arithmetic. Started by benchmarks.forecast.

computing.py SAMPLES BATCH REPEATS WIDTH

Every sample takes the same REPEATS products of two matrices, so that a step's compute goes with its samples alone; the
WIDTH of the network says how much its ranks have to exchange in each step.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

SIDE = 96

samples, batch, repeats, width = map(int, sys.argv[1:5])
torch.set_num_threads(1)
run = headway.init()
torch.manual_seed(0)
model = nn.Linear(width, width, bias=False)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
data = TensorDataset(torch.randn(1, SIDE * SIDE).expand(samples, SIDE * SIDE))
loader = run.loader(data, global_batch=batch, balance=False)
turn = torch.linalg.qr(torch.randn(SIDE, SIDE)).Q
for _ in run.epochs(1):
    for (x,) in loader:
        with torch.no_grad():
            work = x.view(-1, SIDE, SIDE)
            for _ in range(repeats):
                work = work @ turn
        loss = model(work.reshape(len(work), -1)[:, :width]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
