"""A model in double precision whose ranks note, in every step, their samples, the parameters before it and the gradients."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from faults import Faults
from models import make_model
from torch import nn
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="chain")
parser.add_argument("--samples", type=int, default=60)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--max-local", type=int)
parser.add_argument(
    "--even", action="store_true", help="equal local batches, whatever the load of the machine"
)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

run = headway.init(timeout_s=30)
torch.manual_seed(0)
tokens = torch.randint(0, 7, (options.samples, 5))
model = make_model(options.model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
wrapped, optimizer = run.prepare(model, optimizer)
loader = run.loader(
    TensorDataset(torch.arange(options.samples), tokens),
    global_batch=options.batch,
    max_local_batch=options.max_local,
    balance=not options.even,
    seed=3,
)
faults = Faults(run)
taken: list[int] = []
notes: list[dict[str, object]] = []
for epoch in run.epochs(options.epochs):
    for indices, x in loader:
        faults.in_body()
        assert run._training is not None
        start = run._training.place.position.samples
        loss = nn.functional.cross_entropy(wrapped(x).flatten(0, 1), x.roll(1, dims=1).flatten())
        optimizer.zero_grad()
        loss.backward()
        taken += indices.tolist()
        if not run.accumulating:
            before = {name: one.detach().clone() for name, one in model.named_parameters()}
            gradients = {
                name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None
            }
            notes.append(
                {
                    "generation": run.generation,
                    "rank": run.rank,
                    "step": (epoch, start),
                    "samples": taken,
                    "before": before,
                    "gradients": gradients,
                }
            )
            taken = []
            torch.save(notes, options.result / f"notes-{os.getpid()}.new")
            (options.result / f"notes-{os.getpid()}.new").rename(options.result / f"notes-{os.getpid()}.pt")
        optimizer.step()
torch.save(model.state_dict(), options.result / f"{run.rank}-of-{run.world_size}.pt")
