"""Train until killed. Each rank logs the end times of its steps.

    losing.py FOLDER

`benchmarks.failure` starts it. The name of the log is the process id. Its lines are `time rank world_size` (Unix time).
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

WIDTH, SAMPLES = 256, 65_536

run = headway.init()
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
loader = run.loader(TensorDataset(torch.randn(1, WIDTH).expand(SAMPLES, WIDTH)), global_batch=64)
with (Path(sys.argv[1]) / str(os.getpid())).open("a", buffering=1) as notes:
    for _ in run.epochs(10_000):
        for (x,) in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            notes.write(f"{time.time()} {run.rank} {run.world_size}\n")
