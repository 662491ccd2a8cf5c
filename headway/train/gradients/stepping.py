"""Steps of the script's optimizers: one for each complete global batch."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.learning_rate import scaled


def step_once_per_batch(optimizer: Optimizer, gradients: Gradients) -> None:
    """Make `optimizer` skip `step` and `zero_grad` while a global batch is incomplete.

    The script calls both for every micro-batch, `zero_grad` before the backward pass or after the step.
    Therefore gradients are kept from a skipped step until the next step. Groups may bring parameters that the model has got
    since.
    """
    step, zero_grad, add_param_group = optimizer.step, optimizer.zero_grad, optimizer.add_param_group
    skipped_in = 0  # number of the global batch in which a step was skipped, with no step since

    @functools.wraps(step)
    def step_or_skip(_self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # The state changes after the call: a closure calls zero_grad itself, which belongs before the step.
        nonlocal skipped_in
        if gradients.accumulating:
            result = closure() if closure is not None else None
            skipped_in = gradients.batch_number
            return result
        if closure is not None and gradients.commit is not None:
            gradients.commit.before_closure()
        # If another optimizer has stepped with the gradient, this one must, too.
        if not gradients.stepped and not gradients.is_complete():
            return None  # the batch will be repeated with the remaining peers
        with scaled(optimizer, gradients.lr_factor):
            result = step(closure)
            if gradients.commit is not None:
                gradients.commit.follow()
        gradients.stepped_incomplete = gradients.stepped_incomplete or gradients.broken
        skipped_in = 0
        gradients.stepped = True
        return result

    @functools.wraps(zero_grad)
    def zero_grad_or_skip(_self: Optimizer, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002  # torch's signature
        if skipped_in != gradients.batch_number:
            zero_grad(set_to_none)

    @functools.wraps(add_param_group)
    def add_and_list(_self: Optimizer, param_group: dict[str, Any]) -> None:
        add_param_group(param_group)
        gradients.trainable.list_again()

    # Methods of this object, as in torch's schedulers, because other objects already refer to it.
    optimizer.step = types.MethodType(step_or_skip, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_grad_or_skip, optimizer)  # type: ignore[method-assign]
    optimizer.add_param_group = types.MethodType(add_and_list, optimizer)  # type: ignore[method-assign]
