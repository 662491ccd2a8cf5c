"""Train so that the model's state records which samples it was trained on.

    counted.py EPOCHS SEED STEP_S

`benchmarks.faults` starts it. Besides a small network, the model has a table with one number for each epoch and sample. The
loss includes the mean of the table's numbers for the samples of the batch. The learning rate of the table makes every sample
of a step decrease its number by exactly 1. So the table in the last checkpoint shows how often each sample of each epoch was
trained on, in spite of kills, repeated steps, rollbacks and state transfers. All numbers have double precision, so that a
disturbed run differs from an undisturbed one by rounding only.
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
    """Samples with their targets and numbers."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=random)
        self.y = (self.x[:, :1] * self.x[:, 1:2]).tanh() + self.x.mean(dim=1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class Counted(nn.Module):
    """Network with the table that counts samples."""

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
    """Loss over all samples at the end of each epoch, saved and transferred with the weights."""

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
        from journal import Journal  # noqa: PLC0415  # an undisturbed run has no journal

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
