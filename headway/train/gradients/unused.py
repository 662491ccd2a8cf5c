"""Parameters that a backward pass did not reach, such as a head that the loss does not use.

DDP averages nothing before every parameter has a gradient. Therefore the parameters that are left at the end of the
backward pass get the gradient -0.0 here. Added to anything it changes nothing, and a sum is -0.0 only if every rank
contributed that. Such a parameter was used by no rank: it loses its gradient again, so that optimizers skip it as on a
single rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from headway.train.gradients.trainable import unfrozen

NOTHING = -0.0


class UnusedParameters:
    """The parameters of a DDP model without a gradient in the present backward pass.

    `expect_pass` prepares DDP for a backward pass, as its forward pass does.
    In the middle of a micro-batch it follows others: `averaged` are the parameters whose gradient is an average already, and
    `touched` is True if a pass has reached one.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        expect_pass: Callable[[], None],
        averaged: Sequence[nn.Parameter] = (),
        *,
        touched: bool = False,
    ) -> None:
        self._parameters, self._expect_pass = parameters, expect_pass
        self.averaged = averaged
        """Parameters whose gradient is the average of the present batch; none before its first complete pass."""
        self._reached, self._awaits = touched, False
        self._kept: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._left = set(parameters)
        self._without: set[nn.Parameter] = set()
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._left.discard)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]

    def begin(self) -> None:
        """Begin a micro-batch."""
        self.averaged, self._reached = (), False
        self._left.update(self._parameters)

    @property
    def touched(self) -> bool:
        """True if a backward pass has reached a parameter in the present micro-batch."""
        return bool(self.averaged) or self._reached or len(self._left) < len(self._parameters)

    def close(self) -> None:
        """Remove the hooks from all parameters."""
        self._left.clear()
        self._kept.clear()
        while self._hooks:
            self._hooks.pop().remove()

    def await_backward(self, output: Any) -> Any:
        """Return the output of a forward pass whose backward pass will give every parameter a gradient."""
        self._await_pass()

        def watch(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.requires_grad:
                tensor = tensor.view_as(tensor)  # because one output may be another's input
                tensor.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
            return tensor

        return tree_map_only(torch.Tensor, watch, output)

    def _await_pass(self) -> None:
        self._awaits = True
        if self.touched:  # else all parameters are left since the micro-batch began
            self._reached = True
            self._left.update(self._parameters)
        self._without = {one for one in self._parameters if one.grad is None}

    def finish(self) -> None:
        """Add what earlier passes of the batch averaged to the average of the pass that has ended."""
        self.averaged, self._awaits = self._parameters, False
        while self._kept:
            parameter, earlier = self._kept.pop()
            if parameter.grad is None:
                parameter.grad = earlier
            else:
                parameter.grad.add_(earlier)

    def _begin_backward(self, _gradient: torch.Tensor) -> None:
        if not self._awaits:  # the last forward pass was before an earlier backward pass
            self._expect_pass()
            self._await_pass()
        if self.averaged:  # DDP would average them again, by the weights of this pass
            self._kept = [(one, one.grad.clone()) for one in self.averaged if one.grad is not None]
            self.averaged = ()
            for parameter, _ in self._kept:
                parameter.grad = None
        torch.autograd.Variable._execution_engine.queue_callback(self._complete)  # noqa: SLF001

    def _complete(self) -> None:
        """Complete the gradient at the end of a backward pass."""
        unused = [one for one in self._parameters if one in self._left]
        if not unused:
            return
        # DDP completes its average within this pass, also that of parameters that the script has frozen for it.
        with unfrozen(unused):
            torch.autograd.backward(unused, [torch.full_like(one, NOTHING) for one in unused])
        fresh = [one for one in unused if one in self._without and one.grad is not None]
        if not fresh:
            return
        used = torch.stack([_is_something(one.grad) for one in fresh if one.grad is not None]).tolist()
        for parameter, is_used in zip(fresh, used, strict=True):
            if not is_used:
                parameter.grad = None


def _is_something(gradient: torch.Tensor) -> torch.Tensor:
    return ~((gradient == 0) & torch.signbit(gradient)).all()


def weigh_added(parameter: nn.Parameter, weight: Callable[[], float]) -> Any:
    """Weight each gradient before it is added to the parameter's, and return the hook.

    A hook after the addition would miss parameters that the last pass of a batch does not reach. A hook of the parameter itself
    would also change the results of `torch.autograd.grad`.
    """

    def weigh(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        by = weight()
        # Not in place: the pass may use the gradient elsewhere.
        return tuple(one if one is None else one * by for one in gradients) if by != 1.0 else None

    node = torch.autograd.graph.get_gradient_edge(parameter).node
    return _NodeHook(node, node.register_prehook(weigh))


class _NodeHook:
    """A hook, and the node of the graph that has it, which torch would otherwise drop after each pass."""

    def __init__(self, node: Any, handle: Any) -> None:
        self._node, self._handle = node, handle

    def remove(self) -> None:
        self._handle.remove()
        self._node = None


def refuse_misuse(error: Exception) -> None:
    """Raise an error if this one is about the script's use of the model, rather than about a lost peer."""
    if "Expected to have finished reduction" in str(error):
        raise RuntimeError(
            "the backward pass of the last batch left parameters without a gradient; have every batch call the model "
            "that prepare() returned once, and backward() once"
        ) from error
