"""A model that counts: one parameter per sample, whose gradient is that sample's weight in the step.

With plain SGD at rate 1, parameter i ends at minus the sum over all steps with sample i of 1 / (samples in
the step). So the parameters alone prove how often each sample was trained, and with which weight.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from faults import Faults
from torch.utils.data import TensorDataset

import headway


class Counts(torch.nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.counts[indices]


parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=50)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-local", type=int)
parser.add_argument("--collective")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30, collective=options.collective)
model = Counts(options.samples)
wrapped, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
loader = run.loader(
    TensorDataset(torch.arange(options.samples)),
    global_batch=options.batch,
    max_local_batch=options.max_local,
    seed=7,
)
faults = Faults(run)
for epoch in run.epochs(options.epochs):
    for (indices,) in loader:
        loss = wrapped(indices).mean()
        optimizer.zero_grad()
        faults.in_body()
        loss.backward()
        optimizer.step()
    faults.after_loop(epoch)
torch.save(model.counts.detach(), options.result / f"{run.rank}-of-{run.world_size}.pt")
