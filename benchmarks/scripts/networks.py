"""Networks that benchmarks train: layers of square matrices."""

import torch
from torch import nn

SIZES = {"1M": (512, 4), "17M": (2048, 4), "34M": (2048, 8), "100M": (4096, 6)}
"""Width and number of layers, by the approximate number of parameters."""
SAMPLES = 65_536


def network(size: str) -> nn.Sequential:
    width, count = SIZES[size]
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Return an optimizer that updates in one pass over memory, so that steps of large networks are short."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def samples(size: str) -> torch.utils.data.TensorDataset:
    """Return inputs (SAMPLES, width) that share the memory of one sample."""
    width, _ = SIZES[size]
    return torch.utils.data.TensorDataset(torch.randn(1, width).expand(SAMPLES, width))
