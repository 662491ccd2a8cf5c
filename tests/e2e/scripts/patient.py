"""Trains slowly while the file HURRY is not there, then as fast as it can: a test takes all the time that it needs.

With NEWCOMERS_FAIL set, processes that are to join a running training end at once. With SHARDED set, each rank holds a part
of the model.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import headway

STEP_S = 0.05
hurry = Path(os.environ["HURRY"])

run = headway.init()
if "NEWCOMERS_FAIL" in os.environ and "HEADWAY_JOINS" in os.environ:
    sys.exit("there is no licence for another process")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
shard = (lambda model, mesh: fully_shard(model, mesh=mesh)) if "SHARDED" in os.environ else None
model, optimizer = run.prepare(model, optimizer, parallelize=shard)
loader = run.loader(TensorDataset(torch.randn(303, 8)), global_batch=12)

for _ in run.epochs(int(os.environ["EPOCHS"])):
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not hurry.exists():
            time.sleep(STEP_S)
