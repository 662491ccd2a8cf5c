"""Writes what its callbacks see of each change, with a collective of the members, to a file of each process.

With RAISES=before, the callback before a change raises an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faults import Faults
from torch import nn
from torch.utils.data import TensorDataset

import headway
from headway.train import Change

parser = argparse.ArgumentParser()
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30)
file = options.result / f"told-{os.environ['HEADWAY_GENERATION']}.{os.environ['RANK']}.jsonl"


def note(when: str, change: Change) -> None:
    ranks = torch.ones(())
    if dist.is_initialized():
        dist.all_reduce(ranks)  # every member is in its callback
    stop = run.preemption()
    said: dict[str, Any] = {
        "when": when,
        "change": dataclasses.asdict(change),
        "world_size": run.world_size,
        "rank": run.rank,
        "members": int(ranks),
        "steps": run.steps,
        "stop": stop and [stop.kind, stop.reason, stop.left_s],
    }
    with file.open("a") as lines:
        lines.write(json.dumps(said) + "\n")


@run.before_change
def before(change: Change) -> None:
    note("before", change)
    if os.environ.get("RAISES") == "before":
        raise ZeroDivisionError("there is nothing to share")


@run.after_change
def after(change: Change) -> None:
    note("after", change)


model = nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = run.loader(TensorDataset(torch.randn(96, 4)), global_batch=8, balance=False)
faults = Faults(run)
for _ in run.epochs(4):
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        faults.in_body()
        loss.backward()
        optimizer.step()
