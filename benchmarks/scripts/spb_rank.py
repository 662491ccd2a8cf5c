"""Train one task as a rank, and write the step times and the quality of the model.

    spb_rank.py TASK STEPS SEED FILE

`benchmarks.spb` starts it with torchrun's environment. Rank 0 writes FILE as JSON: the seconds of every step, and the share
of unseen values that the model predicts: the accuracy for the classes of `digits` and the characters of `gpt_char`, and R² for `friedman`.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

import headway
from examples import digits, gpt_char

name, total, seed, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


@dataclass(frozen=True)
class Task:
    """A model with its data, and the loss and the quality of its outputs."""

    model: nn.Module
    training: Dataset[Any]
    test: Dataset[Any]
    global_batch: int
    lr: float
    loss: Callable[[Tensor, Tensor], Tensor]
    quality: Callable[[Tensor, Tensor], Tensor]


def share_right(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(dim=-1) == target).float().mean()


def explained(output: Tensor, target: Tensor) -> Tensor:
    return 1 - mse_loss(output, target) / target.var(correction=0)


def friedman() -> Task:
    """Friedman's first function of ten variables with noise, in four hidden layers."""
    x, y = (torch.tensor(one, dtype=torch.float32) for one in make_friedman1(6000, noise=1.0, random_state=0))
    y = ((y - y.mean()) / y.std()).unsqueeze(1)
    widths = [10, 512, 512, 512, 512]
    hidden = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), nn.ReLU())]
    return Task(
        nn.Sequential(*hidden, nn.Linear(512, 1)),
        TensorDataset(x[:4800], y[:4800]),
        TensorDataset(x[4800:], y[4800:]),
        256,
        2e-3,
        mse_loss,
        explained,
    )


def recognition() -> Task:
    training, test = digits.load_data()
    return Task(digits.build_model(64), training, test, 64, 4e-3, cross_entropy, share_right)


def text() -> Task:
    windows = gpt_char.Windows(gpt_char.standard_library(600_000))
    held_out = Subset(windows, range(0, len(windows), 20))
    training = Subset(windows, [index for index in range(len(windows)) if index % 20])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output.flatten(0, 1), target.flatten())

    return Task(gpt_char.CharacterGpt(layers=4), training, held_out, 32, 4e-3, loss, share_right)


torch.manual_seed(seed)
run = headway.init()
torch.set_num_threads(1)
task = {"digits": recognition, "gpt_char": text, "friedman": friedman}[name]()
optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.lr)
schedule = OneCycleLR(optimizer, max_lr=task.lr, total_steps=total + 1)
model, optimizer, schedule = run.prepare(task.model, optimizer, schedule)
loader = run.loader(task.training, global_batch=task.global_batch, seed=seed)
ended_s: list[float] = []
for _ in run.epochs(-(-total // loader.steps_per_epoch)):
    for inputs, targets in loader:
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        ended_s.append(time.perf_counter())
        if len(ended_s) == total:
            break
    if len(ended_s) == total:
        break
if run.is_main:
    task.model.eval()
    x, y = default_collate([task.test[index] for index in range(len(task.test))])  # type: ignore[arg-type]
    with torch.no_grad():
        quality = task.quality(task.model(x), y)
    step_s = [after - before for before, after in pairwise(ended_s)]
    file.write_text(json.dumps({"step_s": step_s, "quality": quality.item()}), encoding="utf-8")
