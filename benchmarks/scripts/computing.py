"""Train one epoch in steps of fixed arithmetic.

    computing.py SAMPLES BATCH REPEATS WIDTH SAMPLE_S

`benchmarks.forecast` starts it. Every sample takes REPEATS matrix products, so that the compute of a step depends only on its
samples. The WIDTH of the network determines how much its ranks exchange in each step. With SAMPLE_S above 0, each sample
waits that many seconds instead, so that other load of the machine has no effect.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

SIDE = 96


class Network(nn.Module):
    """Network with the fixed arithmetic, and one matrix to train."""

    def __init__(self, repeats: int, width: int, sample_s: float) -> None:
        super().__init__()
        self.repeats = repeats
        self.sample_s = sample_s
        self.matrix = nn.Linear(width, width, bias=False)
        self.register_buffer("turn", torch.linalg.qr(torch.randn(SIDE, SIDE)).Q)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sample_s > 0:
            time.sleep(len(x) * self.sample_s)
            return self.matrix(x)
        with torch.no_grad():
            work = x[:, :1, None].expand(-1, SIDE, SIDE).contiguous()
            for _ in range(self.repeats):
                work = work @ self.turn
        return self.matrix(x + work.mean())


samples, batch, repeats, width = map(int, sys.argv[1:5])
sample_s = float(sys.argv[5])
torch.set_num_threads(1)
run = headway.init()
torch.manual_seed(0)
model = Network(repeats, width, sample_s)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
data = TensorDataset(torch.randn(1, width).expand(samples, width))
loader = run.loader(data, global_batch=batch, balance=False)
for _ in run.epochs(1):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
