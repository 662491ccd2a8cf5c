"""Gradients weighted by samples: the step is that of the mean loss over the global batch, whatever
the shares of the ranks and the sizes of the micro-batches.

The script's loss is a mean over its local batch, so the gradient of micro-batch j on rank r is a mean
over n_rj samples. Within a rank micro-batches are added with weight n_rj / n_r by hooks on the
parameters (installed when first needed); between ranks the sums are added with weight n_r / B by a
communication hook of DDP, which replaces its division by the number of ranks and costs no more.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel


class GradientWeights:
    """The weights of the pass at hand, and what depends on them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._optimizer = optimizer
        self._weight = 1.0
        self._weighs_passes = False
        self._accumulating = False
        self._steps_now = True
        self._scale = 1.0 / dist.get_world_size() if self._ddp is not None else 1.0
        self._step, self._zero_grad = optimizer.step, optimizer.zero_grad
        self._gate_optimizer()
        if self._ddp is not None:
            self._ddp.register_comm_hook(None, self._weighted_sum)

    def start_pass(self, *, weight: float, scale: float, is_first: bool, is_last: bool) -> None:
        """The next forward and backward are of this micro-batch."""
        self._weight, self._scale, self._steps_now = weight, scale, is_last
        self._accumulating = not (is_first and is_last)
        if self._accumulating and not self._weighs_passes:
            self._weigh_passes()
        if self._accumulating and is_first:
            self._zero_grad(set_to_none=True)
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = is_last

    def _weigh_passes(self) -> None:
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._weighted)  # type: ignore[no-untyped-call]
        self._weighs_passes = True

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if self._weight == 1.0 else gradient * self._weight

    def _weighted_sum(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(self._scale)
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    def _gate_optimizer(self) -> None:
        """While micro-batches accumulate, only the last one's `step` acts, and gradients are cleared
        here rather than by the script. Bound methods: learning-rate schedulers wrap `step` as one.
        """

        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self._step(*args, **kwargs) if self._steps_now else None

        def zero_grad(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            if not self._accumulating:
                self._zero_grad(*args, **kwargs)

        if hasattr(self._step, "_wrapped_by_lr_sched"):  # or a scheduler warns that its wrapper is gone
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        self._optimizer.step = types.MethodType(step, self._optimizer)  # type: ignore[method-assign]
        self._optimizer.zero_grad = types.MethodType(zero_grad, self._optimizer)  # type: ignore[method-assign]
