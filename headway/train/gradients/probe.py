"""Measurement of the gradient noise during the backward pass and the all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.train.gradients.halves import HalfBatches
from headway.train.gradients.noise import (
    Measurement,
    SquaredNorm,
    SuccessiveSteps,
    from_two_batches,
    preconditioner,
)
from headway.train.gradients.reduction import after_backward
from headway.train.host.output import warn


class NoiseProbe:
    """The norms of one rank's gradients in the steps for which `begin` requests them.

    With peers each rank provides its `square`, and all the same `squared_mean`. Without peers there is a
    `measurement`, which may take the step after the requested one as well. `cost` is the time of the
    measurement, as a multiple of a step without one. All are 0 or None after a step that completed none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        loss_scale: Callable[[], float] = lambda: 1.0,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Measure the gradients of a loss that the script has multiplied by `loss_scale`, until it steps."""
        self.square = 0.0
        self.squared_mean = 0.0
        self.measurement: Measurement | None = None
        self.cost = 0.0
        self._loss_scale = loss_scale
        self._clock = clock
        self._began_s: float | None = None
        self._plain_step_s = 0.0
        self._spent_s = 0.0
        self._idle = False
        self._optimizer = optimizer
        self._successive = SuccessiveSteps()
        self._halves = HalfBatches(clock)
        self._warned = False
        self._local: SquaredNorm | None = None
        self._mean: SquaredNorm | None = None
        self._half: tuple[float, int] | None = None
        self._completed = False
        self._ends = False

    def begin(self, *, measures: bool) -> None:
        """Reset the values at the start of a step, and prepare a measurement if requested."""
        now_s = self._clock()
        if self._idle and self._began_s is not None:
            self._plain_step_s = now_s - self._began_s
        self._began_s = now_s
        self.square = self.squared_mean = self.cost = 0.0
        self.measurement = self._half = self._local = self._mean = None
        self._completed = self._ends = False
        self._idle = not measures and not self._successive.waiting
        if not measures:
            self._halves.begin(measures=False)
            return
        self._spent_s = 0.0
        divided_by = preconditioner(self._optimizer)
        ready = divided_by is None or divided_by.ready
        if ready:
            self._local, self._mean = SquaredNorm(divided_by), SquaredNorm(divided_by)
        self._halves.begin(measures=ready, divided_by=divided_by)
        self._spent_s += self._clock() - now_s

    def local(
        self, gradients: Callable[[], Sequence[Tensor]], parameters: Callable[[], Sequence[Tensor]]
    ) -> None:
        """Add a part of this rank's contribution to the all-reduce. The lists are made only for a measurement."""
        if self._local is None:
            return
        began_s = self._clock()
        self._local.add(gradients(), parameters())
        self._spent_s += self._clock() - began_s

    def forward(self, output: Any, parameters: Sequence[Tensor], samples: int) -> None:
        """Take the output of the model on a lone rank whose step has a single batch, of `samples` samples."""
        self._halves.watch(output, parameters, samples)

    def accumulated(self, parameter: Tensor, *, last: bool, of: Sequence[Tensor]) -> None:
        """Take a lone rank's gradient of one parameter after a micro-batch, which may be the `last` of the step.

        The last pass may reach only some `of` the parameters, so the whole gradient is taken when it ends.
        """
        self._halves.accumulated(parameter)
        if last and self._half is not None and self._mean is not None and not self._ends:
            self._ends = True
            after_backward(lambda: self._end_pass(of))

    def _end_pass(self, parameters: Sequence[Tensor]) -> None:
        self._ends = False
        if self._mean is not None:
            self._mean.forget()  # the script may go backward several times
        self.completed(parameters)

    def completed(self, parameters: Sequence[Tensor]) -> None:
        """Take the gradient that the ranks have added up, before the script can change it, for example to clip it."""
        if self._mean is None:
            return
        began_s = self._clock()
        with_gradient = [one for one in parameters if one.grad is not None]
        self._mean.add([one.grad for one in with_gradient if one.grad is not None], with_gradient)
        self._completed = True
        self._spent_s += self._clock() - began_s

    def halfway(self, parameters: Sequence[Tensor], scale: float, samples: int) -> None:
        """Record a lone rank's accumulated gradients; times `scale` they are the mean over `samples`."""
        if self._local is None:
            return
        began_s = self._clock()
        with_gradient = [one for one in parameters if one.grad is not None]
        self._local.add([one.grad for one in with_gradient if one.grad is not None], with_gradient)
        self._half = (self._local.take() * scale * scale, samples)
        self._spent_s += self._clock() - began_s

    def whole(self, parameters: Sequence[Tensor], *, share: float, samples: int, alone: bool) -> None:
        """Process the step's complete gradient: a mean over `samples`, of which this rank had `share`."""
        if self._local is None and not self._successive.waiting:
            return
        began_s = self._clock()
        self._process(parameters, share=share, samples=samples, alone=alone)
        self._spent_s += self._clock() - began_s + self._halves.spent_s
        if (self.measurement is not None or self.square > 0.0) and self._plain_step_s > 0.0:
            self.cost = self._spent_s / self._plain_step_s

    @torch.no_grad()
    def _process(self, parameters: Sequence[Tensor], *, share: float, samples: int, alone: bool) -> None:
        with_gradient = [one for one in parameters if one.grad is not None]
        gradients = [one.grad for one in with_gradient if one.grad is not None]
        if alone and share == 1.0 and self._half is None:
            found = self._halves.finish()
            if found is not None:
                scaled_by = self._loss_scale() ** 2
                self.measurement = Measurement(found.sqr / scaled_by, found.var / scaled_by)
            if self._halves.refusal is not None:
                self._without_halves(gradients, samples, self._halves.refusal)
            return
        self._successive.forget()
        if self._mean is None or self._local is None:
            return
        # Before the step the script divides the gradient by the scale of the loss, and may clip it.
        scaled_by = self._loss_scale() ** 2
        if not self._completed:
            self._mean.add(gradients, with_gradient)
        self.squared_mean = self._mean.take() / (scaled_by if self._completed else 1.0)
        if self._half is not None:
            half_sqr, half = self._half
            self.measurement = from_two_batches(half_sqr / scaled_by, half, self.squared_mean, samples)
        elif share > 0.0:
            self.square = self._local.take() / (share * scaled_by)

    def _without_halves(self, gradients: Sequence[Tensor], samples: int, refusal: str) -> None:
        if preconditioner(self._optimizer) is None:
            self.measurement = self._successive.add(gradients, samples)
        elif not self._warned:
            self._warned = True
            warn(
                f"the gradient noise is not measured while one rank trains alone: {refusal}. A batch.max_local below the "
                "batch makes the gradient accumulate, whose passes are measured"
            )
