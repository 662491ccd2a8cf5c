"""Gradients of the two halves of a batch, from one more backward pass through the graph of the same forward pass.

The gradient of a mean loss with respect to the model's output has one row per sample. With the rows of the second
half set to zero it gives h_1, the first half's part of the parameters' gradient g, and h_2 = g - h_1. A half with
the share l_i of the samples has the mean gradient h_i / l_i, so two halves are measured as two ranks are. The script's
own gradient, its random numbers and the statistics of batch normalisation stay as they are.

The method needs a gradient that comes through one output of one forward pass. A penalty on the parameters, or a second
loss, would count as noise. Therefore the first pass takes all rows, and its result must equal the script's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from headway.train.gradients.noise import Measurement, Preconditioner, SquaredNorm, from_ranks

TOLERANCE = 0.02
"""Largest relative difference between two computations of one gradient that is rounding, of 16-bit numbers at worst."""


class HalfBatches:
    """Measurement of the noise on a rank that is alone and takes its samples in one batch.

    `refusal` says why this script cannot be measured so; None while it can, as far as is known.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.refusal: str | None = None
        self.spent_s = 0.0
        """Seconds that the measurement of the present step has taken within the script's backward pass."""
        self._clock = clock
        self._verified = self._computing = False
        self._forget()

    def _forget(self) -> None:
        self._edge: GradientEdge | None = None
        self._first: dict[Tensor, Tensor] = {}
        self._left: set[Tensor] = set()
        self._rows = self._samples = 0
        self._norms: tuple[SquaredNorm, SquaredNorm, SquaredNorm] | None = None

    def begin(self, *, measures: bool, divided_by: Preconditioner | None = None) -> None:
        """Begin a step, whose gradients are measured as the optimizer divides them if requested."""
        self._forget()
        self.spent_s = 0.0
        if measures and self.refusal is None:
            self._norms = (SquaredNorm(divided_by), SquaredNorm(divided_by), SquaredNorm(divided_by))

    def watch(self, output: Any, parameters: Sequence[Tensor], samples: int) -> None:
        """Take the gradient of a forward pass over `samples` samples where it enters the model.

        The backward pass of the script then computes that of the first half as well.
        """
        if self._norms is None:
            return
        if samples < 2:
            self._forget()
            return
        tensors = [one for one in tree_leaves(output) if isinstance(one, Tensor) and one.requires_grad]
        if self._samples:
            self._refuse("a step runs the model more than once")
        elif len(tensors) != 1 or tensors[0].ndim == 0 or len(tensors[0]) != samples:
            self._refuse("the model does not return one tensor with a row for each sample")
        else:
            # An edge instead of the tensor, because the script may change the tensor in place.
            self._edge, self._samples = get_gradient_edge(tensors[0]), samples
            self._rows = samples // 2 if self._verified else samples
            tensors[0].register_hook(lambda gradient: self._enter(gradient, parameters))  # type: ignore[no-untyped-call]

    def _enter(self, gradient: Tensor, parameters: Sequence[Tensor]) -> None:
        """Compute the first half's part, at the start of the script's backward pass through the model."""
        if self._computing:  # the pass from below begins at this hook as well
            return
        edge, self._edge = self._edge, None  # the edge holds the graph, whose hook is this method
        if edge is None or self._norms is None:
            self._forget()  # the script runs the backward pass twice
            return
        began_s = self._clock()
        self._computing = True
        part = gradient.detach().clone()
        part[self._rows :] = 0
        try:
            found: Sequence[Tensor | None] = torch.autograd.grad(
                [edge], parameters, [part], retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:  # such as a compiled graph, or memory
            self._refuse(f"a second backward pass fails ({str(error)[:200]})")
            return
        finally:
            self._computing = False
        pairs = zip(parameters, found, strict=True)
        self._first = {parameter: its for parameter, its in pairs if its is not None}
        self._left = set(parameters)
        self._norms[0].add(list(self._first.values()), list(self._first))
        self.spent_s += self._clock() - began_s

    def accumulated(self, parameter: Tensor) -> None:
        """Take the complete gradient of a parameter before the script can change it, for example to clip it."""
        if self._norms is None or not self._samples or parameter.grad is None:
            return
        if parameter not in self._left:
            self._refuse("a parameter has a gradient from outside the model's forward pass")
            return
        began_s = self._clock()
        self._left.remove(parameter)
        first = self._first.pop(parameter, None)
        second = parameter.grad if first is None else parameter.grad - first
        self._norms[1].add([second], [parameter])
        self._norms[2].add([parameter.grad], [parameter])
        self.spent_s += self._clock() - began_s

    def finish(self) -> Measurement | None:
        """Return the measurement of the step. None if it has none, or was the first one, which verifies the method."""
        if self._norms is not None and not self._samples:
            self._refuse("the step does not run the model that `prepare` returned")
        if self._norms is None or self._edge is not None:
            self._forget()
            return None
        samples, rows = self._samples, self._rows
        first, second, whole = (norm.take() for norm in self._norms)
        self._forget()
        if rows < samples:
            share = rows / samples
            return from_ranks(first / share + second / (1.0 - share), 2, whole, samples)
        if math.isfinite(whole) and whole > 0.0:
            self._verified = second <= TOLERANCE**2 * whole
            if not self._verified:
                self._refuse("a part of the loss does not depend on the model's output")
        return None

    def _refuse(self, why: str) -> None:
        self.refusal = why
        self._forget()
