"""Learn handwritten digits with a usual script, on one process."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
dataset = TensorDataset(images, labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(dataset, batch_size=64, shuffle=True)


@torch.no_grad()
def accuracy() -> float:
    device = next(model.parameters()).device
    guesses = model(images.to(device)).argmax(dim=1)
    return (guesses == labels.to(device)).float().mean().item()


for _ in range(EPOCHS):
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"accuracy {accuracy():.4f}")
