"""Samples with random numbers that workers draw, as augmentation does."""

from __future__ import annotations

import multiprocessing
import random
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import headway


class Augmented(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        numpys = np.random.mtrand._rand.random_sample()
        return torch.tensor([torch.rand(()).item(), random.random(), numpys], dtype=torch.float64)


if __name__ == "__main__":
    # The harness has daemons as ranks, which may not start workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    run = headway.init(timeout_s=120)
    model = torch.nn.Linear(3, 1).double()
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
    if sys.argv[1:] == ["--own-loader"]:
        sampler = run.sampler(32, global_batch=8)
        torch.manual_seed(0)  # the same on every rank, as scripts have it
        loader = sampler.through(DataLoader(Augmented(), batch_sampler=sampler, num_workers=1))
    else:
        loader = run.loader(Augmented(), global_batch=8, num_workers=1)
    for _ in run.epochs(1):
        for batch in loader:
            for number in batch.flatten().tolist():
                sys.stdout.write(f"drawn {number}\n")
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
