"""Measurement of the gradient noise during the backward pass and the all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.train.gradients.noise import (
    Measurement,
    SquaredNorm,
    SuccessiveSteps,
    from_two_batches,
    preconditioner,
)


class NoiseProbe:
    """The norms of one rank's gradients in the steps for which `begin` requests them.

    With peers each rank provides its `square`, and all the same `squared_mean`. Without peers there is a
    `measurement`. All are 0 or None after a step that was not measured.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.square = 0.0
        self.squared_mean = 0.0
        self.measurement: Measurement | None = None
        self._optimizer = optimizer
        self._successive = SuccessiveSteps()
        self._local: SquaredNorm | None = None
        self._mean: SquaredNorm | None = None
        self._half: tuple[float, int] | None = None

    def begin(self, *, measures: bool) -> None:
        """Reset the values at the start of a step, and prepare a measurement if requested."""
        self.square = self.squared_mean = 0.0
        self.measurement = self._half = self._local = self._mean = None
        if not measures:
            return
        divided_by = preconditioner(self._optimizer)
        if divided_by is None or divided_by.ready:
            self._local, self._mean = SquaredNorm(divided_by), SquaredNorm(divided_by)

    def local(self, gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Add a part of this rank's contribution to the all-reduce."""
        if self._local is not None:
            self._local.add(gradients, parameters)

    def halfway(self, parameters: Sequence[Tensor], scale: float, samples: int) -> None:
        """Record a lone rank's accumulated gradients; times `scale` they are the mean over `samples`."""
        if self._local is None:
            return
        with_gradient = [one for one in parameters if one.grad is not None]
        self._local.add([one.grad for one in with_gradient if one.grad is not None], with_gradient)
        self._half = (self._local.take() * scale * scale, samples)

    @torch.no_grad()
    def whole(self, parameters: Sequence[Tensor], *, share: float, samples: int, alone: bool) -> None:
        """Process the step's complete gradient: a mean over `samples`, of which this rank had `share`."""
        with_gradient = [one for one in parameters if one.grad is not None]
        gradients = [one.grad for one in with_gradient if one.grad is not None]
        if alone and share == 1.0 and self._half is None:
            divided_by = preconditioner(self._optimizer)
            self.measurement = self._successive.add(gradients, samples, divided_by, with_gradient)
            return
        self._successive.forget()
        if self._mean is None or self._local is None:
            return
        self._mean.add(gradients, with_gradient)
        self.squared_mean = self._mean.take()
        if self._half is not None:
            half_sqr, half = self._half
            self.measurement = from_two_batches(half_sqr, half, self.squared_mean, samples)
        elif share > 0.0:
            self.square = self._local.take() / share
