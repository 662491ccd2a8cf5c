"""A model whose gradient noise is known: every measurement gives |G|^2 = signal and a trace of 1.

Each sample has a parameter of its own, and all share one. A step over samples without repetition has a mean gradient
of squared norm 1 / batch + signal, so the noise scale is 1 / signal.
"""

from __future__ import annotations

import math

import torch


class Counts(torch.nn.Module):
    """A parameter for each sample, and a shared one that sets the signal of the gradients beside their noise."""

    def __init__(self, samples: int, signal: float) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.shared = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.scale = math.sqrt(signal)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.counts[indices] + self.scale * self.shared
