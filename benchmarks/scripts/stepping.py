"""Take steps with Headway and without it in turns, and write their durations.

    stepping.py WIDTH BATCH ROUNDS STEPS FILE [ddp]

`benchmarks.overhead` starts it. Two networks train on the same data: one with Headway, and one with DistributedDataParallel
(or without it, for a single rank unless `ddp` is given). The first two of the STEPS of a turn are not measured, because the caches still contain
data of the other network. FILE gets the seconds of the steps of both for each round, as JSON. WARM_UP steps come first.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import headway

width, batch, rounds, steps = map(int, sys.argv[1:5])
file = Path(sys.argv[5])
against_ddp = sys.argv[6:] == ["ddp"]
CLASSES, LAYERS, SAMPLES = 10, 3, 32_768
WARM_UP = 120


def network() -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()


def batches(loader: Any, device: torch.device) -> Iterator[Any]:
    while True:
        for x, y in loader:
            yield x.to(device), y.to(device)


def steps_with_headway() -> Iterator[float]:
    for _ in run.epochs(10_000):
        for x, y in loader:
            train(model, optimizer, x, y)
            yield time.perf_counter()


def steps_without() -> Iterator[float]:
    # This runs at the first `next`, when the process group exists.
    if run.world_size > 1 or against_ddp:
        device_ids = [run.device.index] if run.device.type == "cuda" else None
        replica: nn.Module = DistributedDataParallel(plain, device_ids=device_ids)
        sampler = DistributedSampler(data)
        plain_loader = DataLoader(data, batch_size=batch // run.world_size, sampler=sampler)
    else:
        replica, plain_loader = plain, DataLoader(data, batch_size=batch, shuffle=True)
    for x, y in batches(plain_loader, run.device):
        train(replica, plain_optimizer, x, y)
        yield time.perf_counter()


def turn_s(ends: Iterator[float]) -> list[float]:
    """Return the seconds of the steps of one turn."""
    taken = list(itertools.islice(ends, steps))[1:]
    return [after - before for before, after in itertools.pairwise(taken)]


run = headway.init()
data = TensorDataset(torch.randn(64, width).repeat(SAMPLES // 64, 1), torch.arange(SAMPLES) % CLASSES)
model = network()
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
loader = run.loader(data, global_batch=batch, balance=False)
plain = network().to(run.device)
plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4)
ours, theirs = steps_with_headway(), steps_without()
for _ in range(WARM_UP // steps):
    turn_s(ours), turn_s(theirs)
found = []
for number in range(rounds):
    if number % 2:
        found.append((turn_s(ours), turn_s(theirs)))
    else:
        without_s = turn_s(theirs)
        found.append((turn_s(ours), without_s))
if run.is_main:
    file.with_suffix(".partial").write_text(json.dumps(found))
    file.with_suffix(".partial").replace(file)
os._exit(0)
