"""A model that counts: one parameter per sample, whose gradient is that sample's weight in the step.

With plain SGD at rate 1, parameter i ends at minus the sum over all steps with sample i of 1 / (samples in
the step). So the parameters alone prove how often each sample was trained, and with which weight.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

import torch
from faults import Faults
from torch.utils.data import DataLoader, TensorDataset

import headway


class Counts(torch.nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.counts[indices]


class SlowState:
    """An object whose state takes `seconds` to read, so that a save pauses training for at least as long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def state_dict(self) -> dict[str, float]:
        time.sleep(self.seconds)
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.seconds = state["seconds"]


parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=50)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-local", type=int)
parser.add_argument("--collective")
parser.add_argument("--state-s", type=float, default=0.0)
parser.add_argument("--until")
parser.add_argument("--own-loader", choices=["anew", "persistent"])
parser.add_argument("--own-group", action="store_true")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30, collective=options.collective)
if options.own_group:
    torch.distributed.new_group()
model = Counts(options.samples)
slow = [SlowState(options.state_s)] if options.state_s else []
wrapped, optimizer, *_ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), *slow)
dataset = TensorDataset(torch.arange(options.samples))
batches = {"global_batch": options.batch, "max_local_batch": options.max_local, "seed": 7}
if options.own_loader:
    sampler = run.sampler(len(dataset), **batches)
    # The harness has daemons as ranks, which may not start workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    own = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=2,
        persistent_workers=options.own_loader == "persistent",
        multiprocessing_context="fork",
    )
    loader = sampler.through(own)
else:
    loader = run.loader(dataset, **batches)
faults = Faults(run)
for epoch in run.epochs(options.epochs, until=options.until):
    for (indices,) in loader:
        loss = wrapped(indices).mean()
        optimizer.zero_grad()
        faults.in_body()
        loss.backward()
        optimizer.step()
    faults.after_loop(epoch)
torch.save(model.counts.detach(), options.result / f"{run.rank}-of-{run.world_size}.pt")
