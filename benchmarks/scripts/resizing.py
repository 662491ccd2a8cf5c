"""Train with Headway until killed. Rank 0 logs the end time of each step.

    resizing.py SIZE FILE

`benchmarks.resize` starts it.
"""

import sys
import time
from pathlib import Path

import torch
from networks import adamw, network, samples

import headway

BATCH = 16

size, file = sys.argv[1], Path(sys.argv[2])
run = headway.init()
torch.manual_seed(0)
model = network(size)
model, optimizer = run.prepare(model, adamw(model))
loader = run.loader(samples(size), global_batch=BATCH)
for _ in run.epochs(10_000):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        if run.is_main:
            with file.open("a", encoding="utf-8") as notes:
                notes.write(f"{time.monotonic()} {run.world_size}\n")
