"""Train for a known time at any size, by a timer.

    sharing.py STEPS STEP_S PART NOISE SEED

`benchmarks.contention` starts it. On k slots a step takes STEP_S * (PART + (1 - PART) / k) seconds times a random factor of
mean 1. The factor depends only on SEED and the number of the step, so that all ranks wait equally long. Half of its variance
changes with every step, and half every `BLOCK` steps, as on a machine that is temporarily slow. NOISE is the standard
deviation of its logarithm.
"""

import math
import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

BATCH = 12
"""Samples of a step, divisible by 1, 2, 3 and 4 ranks."""
BLOCK = 40
WIDTH = 8


def factor(step: int, noise: float, seed: int) -> float:
    """Return the random factor of a step's time: log-normal with mean 1."""
    parts = (f"{seed}/step/{step}", f"{seed}/block/{step // BLOCK}")
    drawn = sum(random.Random(part).gauss(0.0, 1.0) for part in parts) / math.sqrt(2)
    return math.exp(noise * drawn - noise**2 / 2)


def main() -> None:
    steps, step_s, part, noise, seed = int(sys.argv[1]), *map(float, sys.argv[2:5]), int(sys.argv[5])
    torch.set_num_threads(1)
    run = headway.init()
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    data = TensorDataset(torch.ones(1, WIDTH).expand(steps * BATCH, WIDTH))
    loader = run.loader(data, global_batch=BATCH, balance=False)
    due_s = time.perf_counter()
    for _ in run.epochs(1):
        for (x,) in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            # The time from one due time to the next includes the arithmetic and the exchange of gradients.
            due_s += step_s * (part + (1 - part) * len(x) / BATCH) * factor(run.steps, noise, seed)
            time.sleep(max(0.0, due_s - time.perf_counter()))
            # The next step makes up for a short delay by other load, but not for a pause.
            due_s = max(due_s, time.perf_counter() - step_s / 2)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
