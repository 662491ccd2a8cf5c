"""Training in the manner of PyTorch's mnist example, converted with the five lines of the guide.

Everything else is as such scripts have it: functions that get the loader, a line every few batches, and a one-cycle schedule.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from faults import Faults
from torch import nn
from torch.nn.functional import log_softmax, nll_loss, relu
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import headway

CLASSES = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 6 * 6, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return log_softmax(self.fc(relu(self.conv(images)).flatten(1)), dim=1)


def random_data(samples: int, seed: int) -> TensorDataset:
    """Random images with a bright stripe, whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(samples, 1, 8, 8, generator=generator)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    images[torch.arange(samples), 0, 2 * classes] += 1.0
    return TensorDataset(images, classes)


def train(
    run: headway.Run,
    args: Any,
    model: nn.Module,
    train_loader: Any,
    optimizer: Any,
    scheduler: Any,
    epoch: int,
    faults: Faults,
) -> None:
    model.train()
    train_loader.sampler.set_epoch(epoch)
    batch_size = len(next(iter(train_loader))[0])
    print(f"Epoch: {epoch} of {args.epochs} | Batch: {batch_size} | Steps: {len(train_loader)}")  # noqa: T201  # as such scripts do
    for batch_idx, (data, target) in enumerate(train_loader):
        faults.in_body()
        data, target = data.to(run.device), target.to(run.device)  # noqa: PLW2901
        optimizer.zero_grad()
        loss = nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if batch_idx % args.log_interval == 0:
            done, of = batch_idx * train_loader.batch_size, len(train_loader.dataset)
            part = 100.0 * batch_idx / len(train_loader)
            print(f"Train Epoch: {epoch} [{done}/{of} ({part:.0f}%)]\tLoss: {loss.item():.6f}")  # noqa: T201


def test(run: headway.Run, model: nn.Module, test_loader: Any) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(run.device))
            correct += int((output.argmax(dim=1).cpu() == target).sum())
    return correct / len(test_loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--log-interval", type=int, default=4)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()

    run = headway.init(timeout_s=30)
    torch.manual_seed(1)
    train_loader = run.loader(random_data(200, seed=1), global_batch=args.batch_size, seed=1)
    test_loader = DataLoader(random_data(50, seed=2), batch_size=25)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = OneCycleLR(
        optimizer, max_lr=0.01, epochs=args.epochs, steps_per_epoch=len(train_loader), cycle_momentum=False
    )
    model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)
    faults = Faults(run)
    accuracy = 0.0
    for epoch in run.epochs(args.epochs):
        train(run, args, model, train_loader, optimizer, scheduler, epoch, faults)
        accuracy = test(run, model, test_loader)
        run.report(accuracy=accuracy)
    result = {
        "accuracy": accuracy,
        "steps": scheduler.last_epoch,
        "total": scheduler.total_steps,
        "lr": scheduler.get_last_lr(),
    }
    torch.save({"model": model.state_dict(), **result}, args.result / f"{run.rank}-of-{run.world_size}.pt")


if __name__ == "__main__":
    main()
