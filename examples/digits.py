"""Train a small convolutional network on scikit-learn's handwritten digits, elastically.

    python examples/digits.py                              # alone
    torchrun --nproc-per-node 2 examples/digits.py         # on two processes, without Headway
    headway submit examples/digits.yaml --wait             # as a job, on one or two slots

It recognises at least 97 % of unseen digits after a few seconds on one core. The lines with `run` make it elastic: as a job
it may grow, shrink, move, pause or lose a process at any step, and still trains on every sample exactly once an epoch.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import headway


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,347 digits for training and 450 for tests: images (1, 8, 8) in [0, 1], and labels 0 to 9."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(width * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of `data` that the model recognises."""
    images, labels = (tensor.to(device) for tensor in data.tensors)
    model.eval()
    right = (model(images).argmax(dim=1) == labels).float().mean()
    model.train()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=32, help="channels of the convolutions")
    options = parser.parse_args()

    torch.manual_seed(0)
    run = headway.init()
    training_data, test_data = load_data()
    model = build_model(options.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = CosineAnnealingLR(optimizer, T_max=options.epochs)
    model, optimizer, schedule = run.prepare(model, optimizer, schedule)
    loader = run.loader(training_data, global_batch=64, seed=0)
    if run.is_main:
        print(f"{len(training_data):,} images to learn from; processes: {run.world_size}")

    for _ in run.epochs(options.epochs):
        for images, labels in loader:  # members change here, between two steps
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        run.report(accuracy=accuracy(model, test_data, run.device))


if __name__ == "__main__":
    main()
