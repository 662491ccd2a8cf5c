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
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map_only

from headway.train.device import DeviceMeter
from headway.train.learning_rate import scaled
from headway.train.peers import Peers
from headway.train.probe import NoiseProbe
from headway.train.staging import is_sharded

_NO_SYNC: dict[str, bool] = {
    # What DDP would send at every forward pass `ElasticModule` sends itself, since it must survive a lost peer.
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}


class ElasticModule(nn.Module):
    """The model as the script trains it: over the peers of the moment, whoever they are.

    Everything but the forward pass is the model's own, its state among it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._around: list[Callable[..., Any]] = []  # in a list: what it holds must not become a submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass."""
        return self._around[0](*args, **kwargs) if self._around else self.module(*args, **kwargs)

    def surround(self, forward: Callable[..., Any] | None) -> None:
        """Have forward passes go through `forward`; None: straight to the model."""
        self._around = [] if forward is None else [forward]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's, the same at any number of ranks."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: it has no peers, and what goes around the forward pass is not its own."""
        return {**self.__dict__, "_around": []}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Gradients:
    """The gradients of one model, averaged over the peers that `replicate` names; over none at first."""

    def __init__(self, model: nn.Module, *, device: torch.device) -> None:
        self.accumulating = False
        """Whether the global batch goes on after this micro-batch, so that no optimizer step is due."""
        self.stepped = False
        """Whether an optimizer step was taken for the current global batch."""
        self.broken = False
        """Whether a peer was lost before the gradient of the current global batch was whole."""
        self.spoiled = False
        """Whether the optimizer has taken a step with such a gradient: it computed it itself, by a closure."""
        self.meter = DeviceMeter(device)
        """What this rank's own part of the last gradient took, forward and backward."""
        self.batch_number = 0
        """Counts global batches."""
        self.lr_factor = 1.0
        """What the learning rate is multiplied by in the optimizer's steps."""
        self.probe: NoiseProbe | None = None
        """Looks at gradients, where somebody wants to know their noise."""
        self.model = ElasticModule(model)
        self._device = device
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._samples = 0
        self._done = 0
        self._global_batch = 1
        self._weight = 1.0
        self._fresh = False
        self._peers: Peers | None = None
        self._ddp: DistributedDataParallel | None = None
        self._hooks: list[Any] = []
        self._shards = is_sharded(dict(model.named_parameters()))
        self._weigh_alone()

    def replicate(self, peers: Peers) -> None:
        """From now on average with these peers."""
        self.part()
        if self._shards:
            self._peers = peers
            self.model.surround(self._forward_sharded)
            return
        if peers.world_size == 1:
            self._weigh_alone()
            return
        self._peers = peers
        self._ddp = DistributedDataParallel(
            self.model.module,
            device_ids=[self._device.index] if self._device.type == "cuda" else None,
            init_sync=False,
            gradient_as_bucket_view=True,  # no copy of each gradient into its bucket and back
            **_NO_SYNC,  # type: ignore[arg-type]
        )
        # torch reads the hook's annotations, and takes none or its own class, not its name.
        self._ddp.register_comm_hook(None, lambda _state, bucket: self._weighted_sum(bucket))
        self.model.surround(self._forward)

    def part(self) -> None:
        """Average with nobody, until `replicate`. What is under way counts for nothing."""
        self.model.surround(None)
        self._ddp = self._peers = None  # which takes its hooks off the parameters
        while self._hooks:
            self._hooks.pop().remove()
        self.drop()

    def begin(self, samples: int, *, global_batch: int, first: bool, last: bool) -> None:
        """The next backward pass is of a micro-batch of `samples`, 0 for one that must not count."""
        if first:
            self.stepped = self.broken = False
            self.batch_number += 1
            self._fresh = True
            self.meter.begin()
            self._done, self._global_batch = 0, global_batch
        else:
            if self.probe is not None and self._ddp is None and 2 * self._done >= global_batch > 0:
                self.probe.halfway(self._parameters, self._samples / self._done, self._done)
            if samples != self._samples and not self._shards:
                self._scale(self._samples / samples)
        self._samples = samples
        self._done += samples
        self._weight = samples / global_batch if last else 1.0
        self.accumulating = not last
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def abandon(self) -> None:
        """The script left its loop: what was accumulated for an incomplete batch is dropped."""
        if self.accumulating:
            self.drop()

    def drop(self) -> None:
        """There is no gradient."""
        self.accumulating = False
        for parameter in self._parameters:
            parameter.grad = None

    def whole(self) -> bool:
        """Whether the gradient is that of the whole batch. Waits for what is under way.

        An accelerator works behind the program: what it was told to do with a gradient that never became
        whole it would do. So the program waits here, before the optimizer's step and not after it.
        """
        if self._device.type == "cuda" and self._ddp is not None:
            torch.cuda.current_stream(self._device).synchronize()
        self.broken = not self.sound
        if self.sound and self.probe is not None:
            share = self._done / self._global_batch
            alone = self._ddp is None
            self.probe.whole(self._parameters, share=share, samples=self._global_batch, alone=alone)
        return self.sound

    @property
    def nbytes(self) -> int:
        """What a whole gradient takes."""
        return sum(parameter.nbytes for parameter in self._parameters)

    @property
    def sound(self) -> bool:
        """Whether nothing is known to have come between."""
        return not self.broken and not (self._peers is not None and self._peers.aborted)

    def _forward_sharded(self, *args: Any, **kwargs: Any) -> Any:
        """FSDP averages what ranks hand in, each micro-batch by itself: so each is weighted by its samples here,
        where its gradient enters the model.
        """
        assert self._peers is not None
        weight = self._samples * self._peers.world_size / self._global_batch

        def weigh(output: torch.Tensor) -> torch.Tensor:
            if output.requires_grad:
                output.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]
            return output

        return tree_map_only(torch.Tensor, weigh, self.model.module(*args, **kwargs))

    def _weigh_alone(self) -> None:
        if self._shards:
            return
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._weigh)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of DDP, without the collectives that it would raise a lost peer's error from."""
        assert self._ddp is not None
        if torch.is_grad_enabled() and not self.broken:
            try:
                if self._fresh and self._buffers:
                    dist._broadcast_coalesced(dist.group.WORLD, self._buffers, 1 << 28, 0)  # type: ignore[arg-type,attr-defined]  # noqa: SLF001  # DDP's own way
                self._ddp.reducer._rebuild_buckets()  # noqa: SLF001  # it would, once, and finds it done
            except RuntimeError:
                self.broken = True
            self._fresh = False
        return self.model.module(*args, **kwargs) if self.broken else self._ddp(*args, **kwargs)

    def _scale(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _weigh(self, parameter: torch.Tensor) -> None:
        """Without peers: the gradient of a parameter has been accumulated."""
        if self._weight != 1.0 and parameter.grad is not None:
            parameter.grad.mul_(self._weight)

    def _weighted_sum(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """With peers: DDP's reduction of one bucket. A lost peer is noted, and no error reaches the script."""
        gradient = bucket.buffer()
        if bucket.is_last():
            self.meter.end()
        if self._weight == 0.0:
            gradient.zero_()  # not by multiplication: nothing of a sample without weight may pass, NaN neither
        else:
            gradient.mul_(self._weight)
        if self.probe is not None:
            self.probe.local(bucket.gradients(), bucket.parameters())
        try:
            work: Any = dist.all_reduce(gradient, async_op=True)
        except RuntimeError:
            self.broken = True
            as_it_is: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            as_it_is.set_result(gradient)
            return as_it_is
        assert self._peers is not None
        # Of our own, so that it can be ended when the collective does not end: gloo now and then misses a loss.
        result = self._peers.promise(gradient)
        work.get_future().add_done_callback(lambda done: result.keep(self._take(done, gradient)))
        return result.future

    def _take(self, done: Any, gradient: torch.Tensor) -> torch.Tensor:
        try:
            return done.value()[0]  # type: ignore[no-any-return]
        except RuntimeError:
            self.broken = True
            return gradient


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
        if not gradients.whole():
            return None  # the batch will be done again, with the peers that are left
        with scaled(optimizer, gradients.lr_factor):
            result = step(closure)
        gradients.spoiled = gradients.spoiled or gradients.broken
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
        if not self._gradients.accumulating and not self._gradients.broken:
            self._scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
