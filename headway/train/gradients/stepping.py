"""Steps of the script's optimizers: one for each complete global batch."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.learning_rate import scaled
from headway.train.host.output import warn


def is_optimizer(one: Any) -> bool:
    """Return True for an optimizer, also one around another that is no subclass of torch's, such as a Lookahead."""
    return isinstance(one, Optimizer) or (
        callable(getattr(one, "step", None))
        and callable(getattr(one, "zero_grad", None))
        and isinstance(getattr(one, "param_groups", None), list)
    )


class SkippedSteps:
    """The steps that prepared optimizers skip while a global batch is incomplete."""

    def __init__(self) -> None:
        self._cells: list[tuple[set[int], list[int]]] = []

    def of(self, optimizer: Any) -> list[int]:
        """Return the cell that holds the number of the global batch in which a step was skipped, with no step since; else 0.

        Optimizers of the same parameters share it: one around another skips its step, and the script zeroes by the other.
        """
        its = {id(one) for group in optimizer.param_groups for one in group["params"]}
        cell = next((cell for known, cell in self._cells if known & its), [0])
        self._cells.append((its, cell))
        return cell


def step_once_per_batch(optimizer: Any, gradients: Gradients, skipped: SkippedSteps | None = None) -> None:
    """Make `optimizer`, for which `is_optimizer` is true, skip `step` and `zero_grad` while a global batch is incomplete.

    The script calls both for every micro-batch, `zero_grad` before the backward pass or after the step.
    Therefore gradients are kept from a skipped step until the next step. The learning rate of one that is no subclass of
    torch's stays: that of the optimizer in it is scaled.
    """
    scales = isinstance(optimizer, Optimizer)
    step, zero_grad = optimizer.step, optimizer.zero_grad
    skipped_in = (skipped or SkippedSteps()).of(optimizer)

    @functools.wraps(step)
    def step_or_skip(_self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # The state changes after the call: a closure calls zero_grad itself, which belongs before the step.
        gradients.parts.asked_to_step = True
        if gradients.accumulating:
            result = closure() if closure is not None else None
            skipped_in[0] = gradients.batch_number
            return result
        if closure is not None and gradients.commit is not None:
            gradients.commit.before_closure()
        # If another optimizer has stepped with the gradient, this one must, too.
        if closure is not None:
            gradients.parts.settled = True  # it computes the gradient within the step
        if not gradients.stepped and not gradients.is_complete():
            return (
                None  # the batch will be repeated with the remaining peers, or a part of it has no gradient
            )
        gradients.steps_now = True
        # An optimizer in this one must then step, too, even if a peer is lost meanwhile. A closure computes another gradient.
        gradients.stepped = gradients.stepped or closure is None
        try:
            with scaled(optimizer, gradients.lr_factor if scales else 1.0):
                result = step() if closure is None else step(closure)
                if gradients.commit is not None:
                    gradients.commit.follow()
        finally:
            gradients.steps_now = False
        gradients.stepped_incomplete = gradients.stepped_incomplete or gradients.broken
        skipped_in[0] = 0
        gradients.stepped = True
        gradients.carried.used()
        return result

    @functools.wraps(zero_grad)
    def zero_grad_or_skip(_self: Optimizer, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002  # torch's signature
        # A part without a gradient has passed over this, too.
        if skipped_in[0] != gradients.batch_number and not gradients.parts.passed_over:
            gradients.zeroed()
            zero_grad() if set_to_none else zero_grad(set_to_none)

    # Methods of this object, as in torch's schedulers, because other objects already refer to it.
    optimizer.step = types.MethodType(step_or_skip, optimizer)
    optimizer.zero_grad = types.MethodType(zero_grad_or_skip, optimizer)


def name_unprepared(gradients: Gradients, prepared: Iterable[Optimizer]) -> None:
    """Warn once of an optimizer that steps parameters of the model, and was not given to `prepare`, when it first steps.

    One that steps within a step of a prepared optimizer belongs to it.
    """
    of, known = weakref.ref(gradients), weakref.WeakSet(prepared)
    seen: weakref.WeakKeyDictionary[Optimizer, int] = (
        weakref.WeakKeyDictionary()
    )  # groups that were looked at

    def look(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        present = of()
        if present is None:
            handle.remove()
        elif not present.steps_now and optimizer not in known:
            if seen.get(optimizer) == len(optimizer.param_groups):
                return
            seen[optimizer] = len(optimizer.param_groups)
            its = {id(one) for group in optimizer.param_groups for one in group["params"]}
            names = (name for name, one in present.model.module.named_parameters() if id(one) in its)
            if name := next(names, ""):
                handle.remove()
                warn(
                    f"{type(optimizer).__qualname__} steps {name}, but was not given to prepare(): its state reaches neither "
                    "checkpoints nor new ranks, and it may step before the gradient is complete; give prepare() every optimizer"
                )

    handle = register_optimizer_step_pre_hook(look)
