"""Train with Headway until killed. Each rank writes a line of JSON for each step.

    replicas.py SIZE FOLDER

`benchmarks.gpu` starts it. The log of a process is named after its rank at the start and its process id. A line has the end
time of the step, the number of ranks, the optimizer's count of steps, a checksum of the whole state, and the memory in use:
that of the GPU by all processes (0 without one), and the resident memory of this process.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from networks import SIZES, adamw, network
from torch import nn
from torch.utils.data import TensorDataset

import headway
from headway.train.sharding.boxes import Box
from headway.train.sharding.checksum import checksum

BATCH = 16
SAMPLES = 512


def state_checksum(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return a number that another order of these tensors, or of their elements, would change."""
    total = 0
    for parameter in model.parameters():
        for value in (parameter, *optimizer.state[parameter].values()):
            total = total * 31 + checksum(value, Box((0,) * value.dim(), tuple(value.shape)), {0})
    return total % 2**64


def device_bytes() -> int:
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


size, folder = sys.argv[1], Path(sys.argv[2])
run = headway.init()
torch.manual_seed(0)
width, _ = SIZES[size]
model = network(size)
model, optimizer = run.prepare(model, adamw(model))
data = TensorDataset(
    torch.randn(SAMPLES, width)
)  # each rank has other samples, so gradients must be averaged
loader = run.loader(data, global_batch=BATCH)
with (folder / f"{run.rank}-{os.getpid()}").open("a", buffering=1, encoding="utf-8") as notes:
    for _ in run.epochs(100_000):
        for (x,) in loader:
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            digest = state_checksum(model, optimizer)  # it waits for the device
            line = {
                "at_s": time.monotonic(),
                "world_size": run.world_size,
                "step": int(next(iter(optimizer.state.values()))["step"]),
                "digest": digest,
                "device_bytes": device_bytes(),
                "resident_bytes": resident_bytes(),
            }
            notes.write(json.dumps(line) + "\n")
