"""Train such that the state itself says what it was trained on. Started by benchmarks.faults.

    counted.py EPOCHS SEED STEP_S

Beside a small network there is a table of one number for each epoch and sample. The loss adds, as a mean over the batch, the
numbers of the samples in it, and plain gradient descent takes the learning rate that makes every sample of a step count
exactly 1 down in its cell. So whatever was killed, repeated, rolled back or handed over on the way, the table in the last
checkpoint says how often each sample of each epoch went into the weights beside it. All is in double precision, so that a
run that was disturbed differs from one that was not by rounding alone.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import headway

SAMPLES, BATCH, WIDTH = 192, 16, 8


class Samples(Dataset[Any]):
    """Points and what to learn of them, each with its number."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=random)
        self.y = (self.x[:, :1] * self.x[:, 1:2]).tanh() + self.x.mean(dim=1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class Counted(nn.Module):
    """The network, and the table that counts."""

    def __init__(self, epochs: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.network = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.table = nn.Parameter(torch.zeros(epochs, SAMPLES, dtype=torch.float64))

    def forward(
        self, x: torch.Tensor, epoch: int, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.network(x), self.table[epoch, numbers]


class History:
    """The loss over all samples at the end of each epoch; goes where the weights go."""

    def __init__(self, epochs: int) -> None:
        self.losses = torch.zeros(epochs, dtype=torch.float64)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.losses.copy_(state["losses"])


def main() -> None:
    epochs, seed, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    journal = None
    if "JOURNAL" in os.environ:
        from journal import Journal  # noqa: PLC0415  # an undisturbed run writes none

        journal = Journal()
    run = headway.init()
    data = Samples(seed)
    plain, history = Counted(epochs, seed), History(epochs)
    optimizer = torch.optim.SGD(
        [
            {"params": plain.network.parameters(), "lr": 0.02, "momentum": 0.9},
            {"params": [plain.table], "lr": float(BATCH), "momentum": 0.0},
        ]
    )
    model, optimizer, history = run.prepare(plain, optimizer, history)
    loader = run.loader(data, global_batch=BATCH, seed=seed)
    epoch, taken = 0, []

    def stepped(*_: Any) -> None:
        if journal is not None:
            journal.write(
                "step", epoch=epoch, taken=taken, generation=run.generation, rank=run.rank, of=run.world_size
            )

    optimizer.register_step_post_hook(stepped)
    for epoch in run.epochs(epochs):
        for x, y, numbers in loader:
            time.sleep(step_s)
            taken = numbers.tolist()
            found, cells = model(x, epoch, numbers)
            loss = nn.functional.mse_loss(found, y) + cells.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            history.losses[epoch] = nn.functional.mse_loss(model.module.network(data.x), data.y)
    if journal is not None:
        journal.write("end", loss=history.losses[-1].item())


if __name__ == "__main__":
    main()
