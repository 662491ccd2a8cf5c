"""Gradient scaling for half precision, once per global batch."""

from __future__ import annotations

from typing import Any

import torch

from headway.train.gradients.averaging import Gradients


class ScalerOncePerBatch:
    """A `GradScaler` that leaves the gradient as it is while a global batch is incomplete.

    After the loss of a peer the batch is repeated, and the scale stays as it was before. Otherwise ranks would count
    different numbers of good steps, and average gradients of different scales. Everything else belongs to the wrapped
    scaler.
    """

    def __init__(self, scaler: torch.amp.GradScaler, gradients: Gradients) -> None:
        self.wrapped_kind = type(scaler).__qualname__
        self._scaler = scaler
        self._gradients = gradients
        gradients.loss_scale = scaler.get_scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the complete gradient by the scale."""
        if not self._gradients.accumulating:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step the optimizer with the complete gradient, unless that has infinities or NaN."""
        if self._gradients.accumulating:
            return optimizer.step()  # which it skips, so that its `zero_grad` keeps the gradient
        self._gradients.parts.asked_to_step = True
        if not self._gradients.intact or self._gradients.leaves_out():
            return None
        self._gradients.asked_to_step = True
        return self._scaler.step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale to the step, or keep it if the step will be repeated."""
        if self._gradients.accumulating:
            return
        if not self._gradients.intact or self._gradients.left_out:
            new_scale = self._scaler.get_scale()
        self._scaler.update(new_scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler for a checkpoint."""
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the scaler's state. A scaler that is switched off has none."""
        if state_dict:
            self._scaler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
