"""An optimizer step that a rank keeps, because a peer was lost while the ranks agreed on it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn
from torch.optim import Optimizer

from headway.train.gradients.learning_rate import scaled


class HeldStep:
    """The gradients of a step that other ranks may have taken."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._gradients: list[tuple[nn.Parameter, torch.Tensor | None]] = []

    def keep(self, parameters: Collection[nn.Parameter]) -> None:
        """Take the gradients out of the parameters, because `zero_grad` of the script may overwrite them."""
        self._gradients = [(one, one.grad) for one in parameters]
        for one in parameters:
            one.grad = None

    def forget(self) -> None:
        """Drop the gradients: no rank takes the step, or this one does not have all of it."""
        self._gradients = []

    def take(self, lr_factor: float, follow: Callable[[], None] | None = None) -> bool:
        """Take the step, and have `follow` repeat it on a copy. Return False if there is none."""
        if not self._gradients:
            return False
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        with scaled(self._optimizer, lr_factor):
            # Not the object's own method, which waits for a commit.
            type(self._optimizer).step(self._optimizer)
            if follow is not None:
                follow()
        for parameter, _ in self._gradients:
            parameter.grad = None
        self.forget()
        return True
