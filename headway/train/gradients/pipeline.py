"""Training steps of a model whose stages are on several ranks, by the schedules of `torch.distributed.pipelining`.

All pipelines have equally many micro-batches, because FSDP communicates in each, and torch's stages take activations of one
shape. A batch is therefore filled up with copies of its last sample, which do not count in the loss. A `Pipeline` has a schedule
for each size of a micro-batch, and makes them again when members change. Torch would find the shapes by a step of its own, which
changes buffers and drops accumulated gradients. Here each stage passes one sample on in evaluation mode, once for a set of members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_map_only

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.stages import PipelinePlace

LossFunction: TypeAlias = Callable[[Any, Tensor], Tensor]
"""Function of the model's output and the target that returns the mean loss of their samples."""


@dataclass(frozen=True, slots=True)
class _Activation:
    """A tensor that a stage gives to the next one, without the dimension of samples."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def example(self, samples: int, device: torch.device) -> Tensor:
        """Return a tensor of this shape for so many samples."""
        values = torch.empty((samples, *self.shape), dtype=self.dtype, device=device)
        return values.requires_grad_(self.requires_grad)


class Pipeline:
    """The pipeline of this rank's stage. Made by `Run.pipeline`, which describes the arguments and errors."""

    def __init__(
        self, gradients: Gradients, loss: LossFunction, micro_batches: int, device: torch.device
    ) -> None:
        if micro_batches < 1:
            raise ValueError(f"micro_batches is {micro_batches}; it must be at least 1")
        self._gradients = gradients
        self._loss = loss
        self._micro_batches = micro_batches
        self._device = device
        self._module: nn.Module | None = None
        self._sample_shapes: list[torch.Size] = []
        self._activations: list[list[_Activation]] = []
        self._schedules: dict[tuple[int, bool], ScheduleGPipe | Schedule1F1B] = {}
        self._parts: list[int] = []
        self._losses: list[Tensor] = []

    def step(self, *inputs: Tensor, target: Tensor) -> Tensor:
        """Run the forward and the backward pass of a batch, and return its mean loss on every rank of the pipeline.

        The schedule is 1F1B, or GPipe with fewer micro-batches than stages. Every rank calls the method, in place of
        `loss.backward()`.

        Args:
            inputs: arguments of the first stage, as the loader yields them: the first dimension is that of the samples.
            target: argument of the loss function, on the last stage.

        Raises:
            RuntimeError: a peer is lost, or the mesh of the model has no `pp`.
            ValueError: a stage returns something else than tensors with a dimension of samples, or samples differ in shape.
        """
        samples, size = len(target), -(-len(target) // self._micro_batches)
        self._parts = [min(size, max(0, samples - size * part)) for part in range(self._micro_batches)]
        self._losses = []
        with self._schedule(inputs, size, trains=True) as schedule:
            schedule.step(*self._given(inputs, size), target=self._filled(target, size), return_outputs=False)
        return self._shared(lambda: sum(self._losses, start=torch.zeros((), device=self._device)))

    def evaluate(self, *inputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch on every rank of the pipeline, without gradients. The arguments are those of `step`.

        Every rank calls it, between `model.eval()` and `model.train()` where layers differ.
        """
        samples, size = len(target), -(-len(target) // self._micro_batches)
        with torch.no_grad(), self._schedule(inputs, size, trains=False) as schedule:
            output = schedule.step(*self._given(inputs, size))
            return self._shared(lambda: self._loss(_first(samples, output), target))

    def _given(self, inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
        """Return the arguments of this stage's schedule for micro-batches of `size` samples."""
        return tuple(self._filled(one, size) for one in inputs) if self._place.index == 0 else ()

    def _filled(self, one: Tensor, size: int) -> Tensor:
        """Return the samples followed by copies of the last one."""
        missing = size * self._micro_batches - len(one)
        return torch.cat([one, one[-1:].expand(missing, *one.shape[1:])]) if missing else one

    @property
    def _place(self) -> PipelinePlace:
        place = self._gradients.pipeline
        if place is None:
            raise RuntimeError(
                "the model has no stages; give prepare() `parallelize` and a mesh with the dimension pp"
            )
        return place

    def _weighted_loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of the next micro-batch times its weight, and note its part of the batch's loss."""
        samples = self._parts[len(self._losses)]
        rows = max(samples, 1)  # the mean of no sample would be NaN
        loss = self._loss(_first(rows, output), target[:rows]) * (samples / sum(self._parts))
        self._losses.append(loss.detach())
        return loss * self._gradients.shard_weight

    @contextmanager
    def _schedule(
        self, inputs: tuple[Tensor, ...], size: int, *, trains: bool
    ) -> Iterator[ScheduleGPipe | Schedule1F1B]:
        """Run the block with the schedule for micro-batches of this size, with new stages if the members have changed."""
        module = self._gradients.model.module
        shapes = [one.shape[1:] for one in inputs]
        if module is not self._module:
            self._schedules.clear()
            self._activations = self._find_activations(module, inputs)
            self._module, self._sample_shapes = module, shapes
        if shapes != self._sample_shapes:
            raise ValueError(
                f"the samples of a pipeline have one shape, but those of this batch have {shapes} instead of "
                f"{self._sample_shapes}; pad them to one length"
            )
        if (size, trains) in self._schedules:
            yield self._schedules[size, trains]
            return
        with _gradients_kept(module):
            new = self._new_schedule(module, inputs, size, trains=trains)
            yield self._schedules.setdefault((size, trains), new)

    def _new_schedule(
        self, module: nn.Module, inputs: tuple[Tensor, ...], size: int, *, trains: bool
    ) -> ScheduleGPipe | Schedule1F1B:
        place = self._place
        received = (
            tuple(one[:1].expand(size, *one.shape[1:]) for one in inputs)
            if place.index == 0
            else tuple(one.example(size, self._device) for one in self._activations[place.index - 1])
        )
        stage = PipelineStage(
            module,
            place.index,
            place.count,
            self._device,
            input_args=received,
            output_args=tuple(one.example(size, self._device) for one in self._activations[place.index]),
            group=place.group,
        )
        kind = Schedule1F1B if trains and self._micro_batches >= place.count else ScheduleGPipe
        loss = self._weighted_loss if trains else None
        return kind(stage, self._micro_batches, loss_fn=loss, scale_grads=False)

    def _find_activations(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> list[list[_Activation]]:
        """Return what each stage gives to the next one, found by passing on one sample. All ranks call it."""
        place, found = self._place, list[list[_Activation]]()
        trains = False
        for index in range(place.count):
            told: list[Any] = [None]
            if index == place.index:
                given = (
                    [one[:1] for one in inputs]
                    if index == 0
                    else [one.example(1, self._device).detach().zero_() for one in found[-1]]
                )
                trains = trains or any(one.requires_grad for one in module.parameters())
                with _evaluation_mode(module), torch.no_grad():
                    told = [_described(module(*given), index, trains=trains)]
            source = dist.get_global_rank(place.group, index)
            dist.broadcast_object_list(told, src=source, group=place.group, device=self._device)
            found.append(told[0])
            trains = trains or any(one.requires_grad for one in found[-1])
        return found

    def _shared(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result that the last stage computes on every rank of the pipeline."""
        place = self._place
        value = compute().detach().float() if place.is_last else torch.zeros((), device=self._device)
        dist.broadcast(value, dist.get_global_rank(place.group, place.count - 1), group=place.group)
        return value


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Run the block with the module in evaluation mode, in which it draws no random numbers and keeps its buffers."""
    trained = [one for one in module.modules() if one.training]
    module.eval()
    try:
        yield
    finally:
        for one in trained:
            one.training = True


@contextmanager
def _gradients_kept(module: nn.Module) -> Iterator[None]:
    """Run the first step of a schedule, which drops the gradients of FSDP modules, and add them to its own."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    kept = [(one, one.grad) for one in module.parameters() if one.grad is not None]
    for one, _ in kept:
        one.grad = None
    yield
    for one, gradient in kept:
        one.grad = gradient if one.grad is None else one.grad + gradient


def _first(samples: int, output: Any) -> Any:
    """Return the output of the last stage for the first samples."""
    return tree_map_only(Tensor, lambda one: one[:samples], output)


def _described(output: Any, stage: int, *, trains: bool) -> list[_Activation]:
    """Return the description of a stage's output for one sample."""
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not all(type(one) is Tensor and one.ndim and len(one) == 1 for one in tensors):
        raise ValueError(
            f"pipeline stage {stage} returned something else than plain tensors with a row for each sample; "
            "return a tensor or a tuple of them, and compute the loss in the function given to run.pipeline"
        )
    return [
        _Activation(tuple(one.shape[1:]), one.dtype, trains and one.dtype.is_floating_point)
        for one in tensors
    ]
