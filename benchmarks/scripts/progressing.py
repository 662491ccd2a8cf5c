"""Train one of three tasks and report its final loss, and the seconds of its loop from the second step on.

    progressing.py TASK EPOCHS SEED

`benchmarks.progress` starts it. The loss is that of the whole evaluation data, with dropout off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, Subset, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2]))

import headway
from examples import digits, gpt_char

CHARACTERS = 200_000
FEATURES, ROWS = 64, 8192
SMOOTHING = 0.1
"""Label smoothing of the digits: without it their loss ends near 0, where a ratio means nothing."""
EVALUATED = 256
"""Samples evaluated at a time."""


@dataclass(frozen=True, slots=True)
class Task:
    """Model, data, loss and optimizer of a training run, and its global batch."""

    model: nn.Module
    training: Dataset[tuple[Tensor, ...]]
    evaluation: Dataset[tuple[Tensor, ...]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    batch: int


def task_of(name: str) -> Task:
    """Return the task. The noise of the regression is known: its labels have a variance of 1 around the truth."""
    match name:
        case "digits":
            training, tests = digits.load_data()
            model = digits.build_model(32)

            def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
                return cross_entropy(scores, labels, label_smoothing=SMOOTHING)

            return Task(model, training, tests, smoothed, torch.optim.AdamW(model.parameters(), lr=1e-3), 16)
        case "gpt_char":
            windows = gpt_char.Windows(gpt_char.standard_library(CHARACTERS))
            held_out = Subset(windows, range(0, len(windows), 10))
            rest = Subset(windows, [index for index in range(len(windows)) if index % 10])
            gpt = gpt_char.CharacterGpt()

            def of_characters(scores: Tensor, following: Tensor) -> Tensor:
                return cross_entropy(scores.flatten(0, 1), following.flatten())

            return Task(gpt, rest, held_out, of_characters, torch.optim.AdamW(gpt.parameters(), lr=2e-3), 16)
        case "regression":
            x, truth = torch.randn(2 * ROWS, FEATURES), torch.randn(FEATURES, 1)
            y = x @ truth + torch.randn(2 * ROWS, 1)
            line = nn.Linear(FEATURES, 1)
            sets = [TensorDataset(x[part::2], y[part::2]) for part in (0, 1)]
            return Task(line, sets[0], sets[1], mse_loss, torch.optim.SGD(line.parameters(), lr=2e-3), 16)
    raise ValueError(f"no task is called {name}")


@torch.no_grad()
def loss_of(model: nn.Module, task: Task) -> float:
    model.eval()
    data: Any = torch.utils.data.DataLoader(task.evaluation, batch_size=EVALUATED)
    losses = [(task.loss(model(x), y).item(), len(x)) for x, y in data]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


name, epochs, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
run = headway.init()
torch.manual_seed(seed)
task = task_of(name)
loader = run.loader(task.training, global_batch=task.batch, seed=seed)
steps = epochs * loader.steps_per_epoch
schedule = LambdaLR(task.optimizer, lambda step: max(0.0, 1.0 - step / steps))
model, optimizer, schedule = run.prepare(task.model, task.optimizer, schedule)
began_s = None
for _ in run.epochs(epochs):
    for x, y in loader:
        loss = task.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        began_s = began_s or time.perf_counter()
took_s = time.perf_counter() - (began_s or 0.0)
run.report(loss=loss_of(model, task), took_s=took_s, progress=run.progress)
