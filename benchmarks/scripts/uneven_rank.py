"""Train a small convolutional network, and print the durations of its steps as one JSON line.

    uneven_rank.py GLOBAL_BATCH STEPS even|balanced [FOLDER]

`benchmarks.uneven` starts it. The network computes much and communicates little, so that compute determines the step times.

With FOLDER, for `benchmarks.mixed_kinds`, it writes the JSON to the file JOB-RANK there. The variables CORE and PASSES of the
agent give the core that it runs on, and how often it computes each pass.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

global_batch, steps = int(sys.argv[1]), int(sys.argv[2])
balance = sys.argv[3] == "balanced"
folder = Path(sys.argv[4]) if len(sys.argv) > 4 else None
passes = int(os.environ.get("PASSES", "1"))
if folder is not None:
    os.sched_setaffinity(0, {int(os.environ["CORE"])})


class SlowedNetwork(nn.Module):
    """A network that computes each forward and backward pass several times, as a slower device takes longer for it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of equal outputs, so that all passes have a part of the gradient."""
        return torch.stack([self.network(x) for _ in range(passes)]).mean(dim=0)


torch.set_num_threads(1)
torch.manual_seed(0)
run = headway.init()
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
)
model = SlowedNetwork(nn.Sequential(model, nn.Flatten(), nn.Linear(32, 10)))
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
samples = global_batch * steps
data = TensorDataset(
    torch.randn(64, 3, 32, 32).repeat(-(-samples // 64), 1, 1, 1)[:samples], torch.arange(samples) % 10
)
# With small micro-batches, even and balanced ranks differ in the number of micro-batches, but not in cache use.
loader = run.loader(data, global_batch=global_batch, max_local_batch=20, balance=balance)
print("begin", flush=True)
ends, local_batches, samples = [time.perf_counter()], [], 0
for _ in run.epochs(1):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(x)
        if not run.accumulating:
            ends.append(time.perf_counter())
            local_batches.append(samples)
            samples = 0
step_s = [after - before for before, after in itertools.pairwise(ends)]
text = json.dumps({"step_s": step_s, "local_batches": local_batches})
print(text, flush=True)
if folder is not None:
    (folder / f"{os.environ['HEADWAY_JOB_NAME']}-{run.rank}").write_text(text)
