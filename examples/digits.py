"""Train a small convolutional network on scikit-learn's handwritten digits, elastically.

    headway submit examples/digits.yaml --wait     # under Headway, on one or two slots
    python examples/digits.py                      # on its own
    torchrun --nproc-per-node 2 examples/digits.py # without Headway, on two processes

It reaches more than 97 % accuracy on digits that it never saw. The lines with `run` are all that makes
it elastic: it may grow, shrink, move, pause and lose a process at any step, and trains on every
sample exactly once an epoch all the same.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import headway


def load_data() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training samples, and the images and labels to test on. Pixels are in [0, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return TensorDataset(train_x, train_y), test_x, test_y


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--width", type=int, default=32, help="channels of the convolutions")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    run = headway.init()
    dataset, test_x, test_y = load_data()
    model = build_model(arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ddp, optimizer = run.prepare(model, optimizer)
    loader = run.loader(dataset, global_batch=64, seed=0)

    for _ in run.epochs(arguments.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(ddp(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # Every rank has the same replica; testing on one would do.
        run.report(accuracy=accuracy(model, test_x.to(run.device), test_y.to(run.device)), loss=loss.item())


if __name__ == "__main__":
    main()
