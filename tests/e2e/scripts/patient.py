"""Trains slowly while the file HURRY is not there, then as fast as it can: a test takes all the time that it needs.

With NEWCOMERS_FAIL set, processes that are to join a running training end at once. With APPENDS set, rank 0 writes every
step to files of the output folder. With PRINTS set, each rank prints its present rank every step. With SHARDED set, each rank
holds a part of the model, on a mesh of the dimensions that it names. With STOPS set, rank 0 adds each stop to that file.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

import headway
from headway.train import Change

STEP_S = 0.05
hurry = Path(os.environ["HURRY"])
output = Path(os.environ.get("HEADWAY_OUTPUT_DIR", ""))
kept_open = None


def append(step: int) -> None:
    """Add a line to a file that is closed each time, and to one that stays open; replace a third file."""
    global kept_open
    if kept_open is None:
        kept_open = (output / "kept_open.log").open("a")
    kept_open.write(f"{step}\n")
    with (output / "closed.log").open("a") as log:
        log.write(f"{step}\n")
    (output / "best.part").write_text(f"{step}\n")
    (output / "best.part").rename(output / "best.txt")


run = headway.init()
if "NEWCOMERS_FAIL" in os.environ and "HEADWAY_JOINS" in os.environ:
    sys.exit("there is no licence for another process")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def shard(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    if "pp" in names:  # the first layer, and the last
        model[0 if mesh.get_local_rank("pp") else 2] = nn.Identity()
    if "tp" in names:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh[tuple(name for name in names if name not in {"pp", "tp"})])


@run.before_change
def note_stop(_change: Change) -> None:
    stop = run.preemption()
    if stop is not None and run.is_main and "STOPS" in os.environ:
        with Path(os.environ["STOPS"]).open("a", encoding="utf-8") as stops:
            stops.write(json.dumps([stop.kind, stop.reason, stop.left_s]) + "\n")


names = os.environ.get("SHARDED", "").split(",")
if "fsdp" in names:
    model, optimizer = run.prepare(model, optimizer, parallelize=shard, mesh=names)
else:
    model, optimizer = run.prepare(model, optimizer)
pipeline = run.pipeline(lambda output, _target: output.square().mean(), micro_batches=2)
loader = run.loader(TensorDataset(torch.randn(303, 8)), global_batch=12)

for _ in run.epochs(int(os.environ["EPOCHS"])):
    for (batch,) in loader:
        optimizer.zero_grad()
        if "pp" in names:
            loss = pipeline.step(batch, target=batch)
        else:
            loss = model(batch).square().mean()
            loss.backward()
        optimizer.step()
        if "APPENDS" in os.environ and run.rank == 0:
            append(run.steps)
        if "PRINTS" in os.environ:
            sys.stdout.write(f"{run.rank}\n")
        if not hurry.exists():
            time.sleep(STEP_S)
