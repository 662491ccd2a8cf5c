"""Gradients that do not depend on how a batch was divided.

A script computes the mean loss of the samples that it was handed. What the optimizer must see is the
gradient of the mean over the whole global batch, whatever the number of ranks and of micro-batches:

    g  =  sum over ranks and micro-batches of  (samples / global batch) * gradient of the micro-batch's mean

Within a rank the accumulated gradient is kept in units of the micro-batch that is added next: it is scaled
when the sizes differ, once per step at most. Across ranks DDP sums buckets that each rank has scaled by
(samples of its last micro-batch / global batch).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Gradients:
    """The gradients of one model. `replicated` averages them with the same model on the peers."""

    def __init__(self, model: nn.Module, *, device: torch.device, replicated: bool) -> None:
        self.accumulating = False
        """Whether the global batch goes on after this micro-batch, so that no optimizer step is due."""
        self.stepped = False
        """Whether an optimizer step was taken for the current global batch."""
        self.batch_number = 0
        """Counts global batches."""
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._samples = 0
        self._weight = 1.0
        self._ddp: DistributedDataParallel | None = None
        if replicated:
            self._ddp = DistributedDataParallel(
                model, device_ids=[device.index] if device.type == "cuda" else None
            )
            # torch reads the hook's annotations, and takes none or its own class, not its name.
            self._ddp.register_comm_hook(None, lambda _state, bucket: self._weighted_sum(bucket))
        else:
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._weigh)  # type: ignore[no-untyped-call]
        self.model: nn.Module = self._ddp or model

    def begin(self, samples: int, *, global_batch: int, first: bool, last: bool) -> None:
        """The next backward pass is of a micro-batch of `samples`, 0 for one that must not count."""
        if first:
            self.stepped = False
            self.batch_number += 1
        elif samples != self._samples:
            self._scale(self._samples / samples)
        self._samples = samples
        self._weight = samples / global_batch if last else 1.0
        self.accumulating = not last
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def abandon(self) -> None:
        """The script left its loop: what was accumulated for an incomplete batch is dropped."""
        if self.accumulating:
            self.accumulating = False
            for parameter in self._parameters:
                parameter.grad = None

    def _scale(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _weigh(self, parameter: torch.Tensor) -> None:
        """Without peers: the gradient of a parameter has been accumulated."""
        if self._weight != 1.0 and parameter.grad is not None:
            parameter.grad.mul_(self._weight)

    def _weighted_sum(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """With peers: DDP's reduction of one bucket."""
        gradient = bucket.buffer()
        if self._weight == 0.0:
            gradient.zero_()  # not by multiplication: nothing of a sample without weight may pass, NaN neither
        else:
            gradient.mul_(self._weight)
        work: Any = dist.all_reduce(gradient, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


def step_once_per_batch(optimizer: Optimizer, gradients: Gradients) -> None:
    """Make `optimizer` skip `step` and `zero_grad` while a global batch is incomplete.

    The script calls both for every micro-batch, `zero_grad` before the backward pass or after the step. So
    gradients are kept from a skipped step on until one was taken.
    """
    step, zero_grad = optimizer.step, optimizer.zero_grad
    skipped_in = 0  # the number of the global batch in which a step was skipped, and none taken since

    @functools.wraps(step)
    def step_or_skip(_self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # The state changes after the call: a closure has a zero_grad of its own, which belongs before the step.
        nonlocal skipped_in
        if gradients.accumulating:
            result = closure() if closure is not None else None
            skipped_in = gradients.batch_number
            return result
        result = step(closure)
        skipped_in = 0
        gradients.stepped = True
        return result

    @functools.wraps(zero_grad)
    def zero_or_keep(_self: Optimizer, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002  # torch's signature
        if skipped_in != gradients.batch_number:
            zero_grad(set_to_none)

    # As methods of this very object, as torch's schedulers do it: references to it are everywhere already.
    optimizer.step = types.MethodType(step_or_skip, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_or_keep, optimizer)  # type: ignore[method-assign]


class OncePerBatch:
    """A learning-rate scheduler whose `step` does nothing while a global batch is incomplete.

    Everything else is the scheduler's own.
    """

    def __init__(self, scheduler: LRScheduler, gradients: Gradients) -> None:
        self._scheduler = scheduler
        self._gradients = gradients

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler, once per optimizer step or epoch."""
        if not self._gradients.accumulating:
            self._scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
