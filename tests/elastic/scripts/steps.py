"""A model that counts, as that of `count.py`, trained by steps without epochs.

It notes the steps that each process evaluated and, as `run.steps`, those that it took.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from counting import Counts
from faults import Faults
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=["loader", "range", "draws"], required=True)
parser.add_argument(
    "--one-by-one", action="store_true", help="take one batch in each body, not all of the step"
)
parser.add_argument("--samples", type=int, default=50)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-local", type=int)
parser.add_argument("--evaluate-every", type=int, default=10)
parser.add_argument("--signal", type=float, default=1.0)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30)
model = Counts(options.samples, options.signal)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
wrapped, optimizer, schedule = run.prepare(model, optimizer, LambdaLR(optimizer, lambda _: 1.0))
sizes = {"global_batch": options.batch, "max_local_batch": options.max_local, "seed": 7}
if options.data == "loader":
    data = run.loader(
        TensorDataset(torch.arange(options.samples)), collate_fn=torch.utils.data.default_collate, **sizes
    )
elif options.data == "range":
    data = run.loader(range(options.samples), collate_fn=list, **sizes)
else:
    data = run.indices(options.samples, **sizes)
faults = Faults(run)
notes = (options.result / f"evaluated-{os.getpid()}.txt").open("w")
for step in run.train_steps(options.steps):
    if run.evaluate_every(options.evaluate_every):
        notes.write(f"{step}\n")
        notes.flush()
    if not run.accumulating:
        faults.in_body()
    for batch in [next(data)] if options.one_by_one else data:
        indices = batch[0] if options.data == "loader" else batch
        wrapped(indices).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
torch.save(
    {
        "counts": model.counts.detach(),
        "steps": run.steps,
        "progress": run.progress,
        "scheduled": schedule.last_epoch,
    },
    options.result / f"{run.rank}-of-{run.world_size}.pt",
)
