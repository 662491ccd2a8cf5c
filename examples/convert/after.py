"""Learn handwritten digits, elastically: `before.py` with five lines changed, and one more to report the accuracy."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import headway

EPOCHS = 5
run = headway.init()

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
dataset = TensorDataset(images, labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(dataset, global_batch=64, seed=0)


@torch.no_grad()
def accuracy() -> float:
    device = next(model.parameters()).device
    guesses = model(images.to(device)).argmax(dim=1)
    return (guesses == labels.to(device)).float().mean().item()


for _ in run.epochs(EPOCHS):
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.report(accuracy=accuracy())
