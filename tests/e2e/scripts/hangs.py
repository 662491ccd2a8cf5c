"""Trains, and hangs once on its first start: HOW says how, rank WHO does it, after the step AT."""

import ctypes
import os
import signal
import threading
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway


def hang() -> None:
    """In the way that HOW names."""
    match os.environ["HOW"]:
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "gil":
            ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


run = headway.init()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(TensorDataset(torch.randn(303, 8)), global_batch=12)
steps = 0
for _ in run.epochs(8):
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        threading.Event().wait(0.02)  # so long that how much a step takes is told before the last one
        steps += 1
        due = steps >= int(os.environ["AT"]) and not Path(os.environ["ONCE"]).exists()
        if due and int(os.environ["RANK"]) == int(os.environ["WHO"]):
            Path(os.environ["ONCE"]).touch()
            hang()
