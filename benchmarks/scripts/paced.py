"""Train a number of steps at a fixed pace, or as fast as the processor allows.

    paced.py STEPS STEP_S         a step takes STEP_S seconds on one slot, and PART + (1 - PART) / k of that on k slots, by a timer
    paced.py STEPS STEP_S NOISE   the same, with a gradient whose noise scale is NOISE samples, for an adaptive batch
    paced.py STEPS                a step takes as long as its arithmetic

`benchmarks.agreement` and `benchmarks.soak` start it.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

BATCH = 16
PART = 0.2
"""Share of a step on one slot that does not become shorter with more slots."""
WIDTH, LAYERS, PASSES = 512, 4, 4
"""Size of the arithmetic, which takes some tens of milliseconds on one core."""


def network(width: int, layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


def main() -> None:
    steps = int(sys.argv[1])
    step_s = float(sys.argv[2]) if len(sys.argv) > 2 else None
    noise_scale = float(sys.argv[3]) if len(sys.argv) > 3 else None
    run = headway.init()
    width = 8 if step_s is not None else WIDTH
    model: nn.Module = network(width, 1 if step_s is not None else LAYERS)
    samples = torch.ones(1, width).expand(steps * BATCH, width)
    if noise_scale is not None:  # the gradient of a linear model's mean output is the mean sample
        model, samples = nn.Linear(width, 1, bias=False), 1 + noise_scale**0.5 * torch.randn(samples.shape)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = run.loader(TensorDataset(samples), global_batch=BATCH, balance=False)
    for _ in run.epochs(1):
        for (x,) in loader:
            began_s = time.perf_counter()
            output = model(x if step_s is not None else x.repeat(PASSES * BATCH, 1))
            loss = output.square().mean() if noise_scale is None else output.mean()
            optimizer.zero_grad()
            if step_s is not None:
                until_s = began_s + step_s * (PART + (1 - PART) * len(x) / BATCH)
                time.sleep(max(0.0, until_s - time.perf_counter()))
            loss.backward()
            optimizer.step()
        run.report(trained=1.0)


if __name__ == "__main__":
    main()
