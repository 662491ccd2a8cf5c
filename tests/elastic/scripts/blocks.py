"""Part of the models of sharded trainings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two layers, which tensor parallelism divides, with a buffer in the state and another outside of it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.register_buffer("factor", torch.full((), 0.5), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return h + self.factor * torch.tanh(self.down(torch.relu(self.up(h))))  # type: ignore[operator]
