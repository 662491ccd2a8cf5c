"""The counting model of `count.py` with what scripts have beside it: buffers, workers, slow saves, odd optimizers."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import torch
from faults import Faults
from torch import nn
from torch.utils.data import TensorDataset

import headway

# Ranks of these tests are daemons of a fork server; workers of a loader are forked children, as of any script.
multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
multiprocessing.set_start_method("fork", force=True)

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=50)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-local", type=int)
parser.add_argument("--result", type=Path, required=True)
parser.add_argument("--wider-on", type=int, help="this rank's model has a parameter more than the others'")
parser.add_argument("--norm", action="store_true", help="with buffers, noted as each step finds them")
parser.add_argument("--ballast-mb", type=int, default=0, help="to make saves take a while")
parser.add_argument("--stateless", action="store_true", help="an optimizer without state and learning rate")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--leave-after", type=int, help="leave each epoch's loop after so many steps")
parser.add_argument(
    "--leaves-alone", type=int, help="this rank leaves each epoch's loop after its first step"
)
parser.add_argument("--hold-saves", action="store_true", help="wait in a save while there is a file `hold`")
options = parser.parse_args()


class Odd(nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.norm = nn.BatchNorm1d(1, dtype=torch.float64) if options.norm else None
        ballast = torch.zeros(options.ballast_mb, 1 << 20, dtype=torch.uint8)
        self.ballast = nn.Parameter(ballast, requires_grad=False)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        counted: torch.Tensor = self.counts[indices]
        return counted if self.norm is None else counted + self.norm(indices.double().unsqueeze(1)).squeeze(1)


class Plain(torch.optim.Optimizer):
    """Plain gradient descent at rate 1."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)


class Held:
    """Something to save that takes until nobody holds it."""

    def state_dict(self) -> dict[str, Any]:
        if (options.result / "hold").exists():
            (options.result / f"saving-{os.getpid()}").touch()
        while (options.result / "hold").exists():
            time.sleep(0.001)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


run = headway.init(timeout_s=30)
model = Odd(options.samples + (run.rank == options.wider_on))
optimizer = Plain(model.parameters()) if options.stateless else torch.optim.SGD(model.parameters(), lr=1.0)
wrapped, optimizer, *_ = run.prepare(model, optimizer, *([Held()] if options.hold_saves else []))
loader = run.loader(
    TensorDataset(torch.arange(options.samples)),
    global_batch=options.batch,
    max_local_batch=options.max_local,
    num_workers=options.workers,
    balance=not options.norm,  # which needs two samples on each rank
    seed=7,
)


def note(norm: nn.Module, _inputs: Any) -> None:
    assert run._training is not None
    notes.write(f"{run.generation} {run._training.place.samples} {norm.running_mean.item()!r}\n")
    notes.flush()


notes = (options.result / f"norms-{os.getpid()}.txt").open("w")
if model.norm is not None:
    model.norm.register_forward_pre_hook(note)
faults = Faults(run)
for epoch in run.epochs(options.epochs):
    for (indices,) in loader:
        loss = wrapped(indices).mean()
        optimizer.zero_grad()
        faults.in_body()
        loss.backward()
        optimizer.step()
        if run.rank == options.leaves_alone:
            break
        if options.leave_after is not None and not run.accumulating:
            assert run._training is not None
            committed = run._training.place.position.samples  # the same on a rank that came in the middle
            if committed + options.batch >= options.leave_after * options.batch:
                break
    faults.after_loop(epoch)
torch.save(model.counts.detach(), options.result / f"{run.rank}-of-{run.world_size}.pt")
