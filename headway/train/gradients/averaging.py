"""Gradients that do not depend on the division of a batch.

A script computes the mean loss of the samples that it received. The optimizer must get the gradient of the
mean over the whole global batch, at any number of ranks and micro-batches:

    g  =  sum over ranks and micro-batches of  (samples / global batch) * gradient of the micro-batch's mean

Within a rank the accumulated gradient is kept in units of the next micro-batch. It is scaled when the sizes
differ, at most once per step. Across ranks, DDP sums buckets that each rank has scaled by (samples of its
last micro-batch / global batch). In a partial step, the samples of the ranks that computed the layer replace the global batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from headway.train.checkpoint.staging import is_sharded
from headway.train.collectives.losses import GROUP_ERRORS, is_loss
from headway.train.gradients.carried import CarriedGradients
from headway.train.gradients.clock import Clock
from headway.train.gradients.commit import StepCommit
from headway.train.gradients.depths import PartialStep
from headway.train.gradients.device import DeviceMeter
from headway.train.gradients.fixed_layers import FixedLayers
from headway.train.gradients.left_out import NOT_A_NUMBER, Parts
from headway.train.gradients.module import ElasticModule
from headway.train.gradients.partial import PartialBackward
from headway.train.gradients.probe import NoiseProbe
from headway.train.gradients.reduction import after_backward, data_parallel, send_buffers
from headway.train.gradients.stages import PipelinePlace
from headway.train.gradients.trainable import TrainableExchange, TrainableSet, unfrozen
from headway.train.gradients.unused import NOTHING, UnusedParameters, refuse_misuse, weigh_added
from headway.train.host.output import warn
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers


class Gradients:
    """The gradients of one model, averaged over the peers of `replicate`; at first without peers.

    `min_depth` is the smallest share of the layers that a rank back-propagates through; None: each goes through all.
    """

    def __init__(self, model: nn.Module, *, device: torch.device, min_depth: float | None = None) -> None:  # noqa: PLR0915  # one line for each field
        self.accumulating = False
        """True if the global batch continues after this micro-batch, so that no optimizer step is due."""
        self.stepped = False
        """True if an optimizer step was taken for the current global batch."""
        self.asked_to_step = False
        """True if a scaler was asked for a step, which it skips if the gradient overflows."""
        self.steps_now = False
        """True within the step of an optimizer."""
        self.broken = False
        """True if a peer was lost before the gradient of the current global batch was complete."""
        self.without_results = False
        """True if a peer of a sharded model was lost, so that results of the model are wrong until the next step."""
        self.stepped_incomplete = False
        """True if the optimizer stepped with an incomplete gradient, which a closure computed within the step."""
        self.meter = DeviceMeter(device)
        """Meter of this rank's own part of the last gradient, forward and backward."""
        self.batch_number = 0
        """Number of the current global batch."""
        self.lr_factor = 1.0
        """Factor of the learning rate in the optimizer's steps."""
        self.loss_scale: Callable[[], float] = lambda: 1.0
        """Factor by which the script multiplies the loss, and divides the complete gradient."""
        self.probe: NoiseProbe | None = None
        """Probe of the gradient noise, where it is measured."""
        self.pipeline: PipelinePlace | None = None
        """Place of this rank in its pipeline; None for a model without stages."""
        self.commit: StepCommit | None = None
        """Agreement of the ranks on each step, where shards have copies."""
        self.carried = CarriedGradients()
        """Batches whose gradients the script keeps for its own step."""
        self.parts = Parts()
        """Micro-batches of the present batch without a gradient."""
        self.clock = Clock()
        """Progress of training, which learning-rate schedules follow."""
        self.model = ElasticModule(model)
        self._device = device
        self.trainable = TrainableSet(model)
        """Parameters of the model that train."""
        self._untold = self._told_of_hook = self._told_of_turns = False
        self._shards = False
        self._fixed: FixedLayers | None = None
        self._samples = self._done = 0
        self._alone = self._fresh = False
        self._global_batch = self._groups = 1
        self._weight = 1.0
        self._peers: Peers | None = None
        self._exchange: TrainableExchange | None = None
        self._ddp: DistributedDataParallel | None = None
        self._hooks: list[Any] = []
        self._min_depth = min_depth
        self._partial: PartialBackward | None = None
        self._unused: UnusedParameters | None = None
        self.adopt(model)
        self._weight_without_peers()

    def adopt(self, model: nn.Module) -> None:
        """Train this model from now on. Call it without peers."""
        self.detach()
        self.model.module = model
        self.trainable = TrainableSet(model)
        sharded_before, self._shards = self._shards, is_sharded(dict(model.named_parameters()))
        self._fixed = FixedLayers(model) if self._shards else None
        if self._min_depth is not None and self._shards and not sharded_before:
            warn(
                "elastic.partial_backprop has no effect: the model is sharded, and ranks compute all gradients"
            )

    def replicate(self, peers: Peers, groups: int, exchange: TrainableExchange | None = None) -> None:
        """Average with these peers from now on, of which so many groups of ranks have different samples.

        They agree in `exchange` on the parameters that train.
        """
        self.detach()
        self._exchange = exchange
        if self._shards:
            self._peers, self._groups = peers, groups
            self.model.set_forward(self._forward_sharded)
            return
        if peers.world_size == 1:
            self._weight_without_peers()
            return
        self._peers = peers
        self.trainable.follow()
        self._reduce(peers)
        self.model.set_forward(self._forward)

    def _reduce(self, peers: Peers) -> None:
        """Make the reduction of the parameters that train now. It communicates with no peer."""
        averaged, touched = (
            (self._unused.averaged, self._unused.touched) if self._unused is not None else ((), False)
        )
        self._end_reduction()
        if not self._parameters:
            return  # DDP refuses a model without trainable parameters
        # Also of those that the script has frozen for this pass.
        with unfrozen(self._parameters):
            try:
                self._ddp = data_parallel(self.model.module, self._device, self._weighted_sum)
            except GROUP_ERRORS as error:
                self._lose(error)
                return  # the next boundary finds the loss, too
            self._unused = UnusedParameters(self._parameters, self._expect_pass, averaged, touched=touched)
            if self._min_depth is not None:
                self._partial = PartialBackward(self.model.module, self._min_depth, peers)
                self._partial.begin(None)

    def _expect_pass(self) -> None:
        """Prepare a backward pass whose forward pass was before another backward pass."""
        self._renew_buckets()
        if self._ddp is not None and not self.broken:
            self._ddp.reducer.prepare_for_backward([])

    def _renew_buckets(self) -> None:
        """Divide the gradient into buckets in the order of the last pass, once. A lost peer is recorded."""
        if self._ddp is None or self.broken:
            return
        try:
            self._ddp.reducer._rebuild_buckets()  # noqa: SLF001  # DDP's forward then has nothing to rebuild
        except GROUP_ERRORS as error:
            refuse_misuse(error)
            self._lose(error)

    def _end_reduction(self) -> None:
        if self._partial is not None:
            self._partial.close()
        if self._unused is not None:
            self._unused.close()
        self._ddp = self._partial = self._unused = None  # removes DDP's hooks from the parameters

    def detach(self) -> None:
        """Average without peers until `replicate`, and discard the present gradient."""
        self.model.set_forward(None)
        self._end_reduction()
        self._peers, self._alone = None, False
        self._unhook()
        self.drop()

    def take_depths(self) -> tuple[float, ...] | None:
        """Return the depths of the levels, once after the first step of a generation; None at other times."""
        return self._partial.take_depths() if self._partial is not None else None

    def begin(
        self,
        samples: int,
        *,
        global_batch: int,
        first: bool,
        last: bool,
        partial: PartialStep | None = None,
    ) -> None:
        """Prepare the backward pass of a micro-batch of `samples` samples; 0: its gradient must not count.

        `partial` has the levels of the step's ranks; None: each goes through the whole model.
        """
        if not self._shards and not (first and last):  # the forward pass of a single micro-batch does so
            self.trainable.list_again()
        self._refuse_changed_layers()
        if first:
            self.stepped = self.asked_to_step = self.broken = self.without_results = False
            self.batch_number += 1
            self._fresh = True
            self.meter.begin(samples)
            self._done, self._global_batch = 0, global_batch
            self.parts.begin_batch(self.trainable.all if self.carried.batches and not self._shards else ())
        else:
            self._end_part()
            if self.probe is not None and self._ddp is None and 2 * self._done >= global_batch > 0:
                self.probe.halfway(self._parameters, self._samples / self._done, self._done)
            if not self._shards:
                # Without peers a gradient is weighted before it is added: some passes do not reach every parameter.
                weight = samples / global_batch if last and self._alone else 1.0
                self._scale(weight if samples == self._samples else weight * self._samples / samples)
        self.parts.begin_part(samples)
        self._samples = samples
        self._done += samples
        self._weight = samples / global_batch if last else 1.0
        self.accumulating, self._untold = not last, last
        if self._alone:
            self._follow_alone()
        if first and not self._shards:
            self._tell_of_hook()
        if self._partial is not None:
            self._partial.begin(partial)
        if self._unused is not None:
            self._unused.begin()
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def _end_part(self) -> None:
        if self._unused is not None and self._unused.touched:
            self.parts.reached = True
        self.parts.end_part(self._samples)

    @property
    def left_out(self) -> bool:
        """True if the present batch takes no step, because the script computed no gradient for a part of it."""
        return self.parts.left_out

    def leaves_out(self) -> bool:
        """Return True if the batch takes no step, because the script computed no gradient for a part of it, on any rank.

        Every rank calls it for each batch, when it is to step or at the end of the batch.
        """
        if self.left_out:
            self.parts.restore(self.trainable.all)
        if self.parts.settled or self._shards or self.stepped or self.accumulating or not self.intact:
            return self.left_out
        alone = self._alone and bool(self._parameters)
        if not alone and self._ddp is None:
            return False
        if alone:
            self._end_part()
            everyone: Sequence[Sequence[int]] = [self.parts.counts]
        elif (found := self._missing_of_everyone()) is None:
            return False
        else:
            everyone = found
        if self.parts.settle(everyone):
            self.parts.restore(self.trainable.all)
            if self.probe is not None:
                self.probe.begin(measures=False)
        return self.left_out

    def _missing_of_everyone(self) -> Sequence[Sequence[int]] | None:
        """Return the counts of all ranks; None if no part is missing, or a peer is lost."""
        assert self._unused is not None
        assert self._peers is not None
        mine: list[tuple[nn.Parameter, torch.Tensor]] = []
        if not self._unused.averaged:
            if self._unused.touched:
                return (
                    None  # by a pass that did not go through the model of prepare(), which nothing averages
                )
            self._end_part()
            mine = [(one, one.grad.clone()) for one in self.trainable.all if one.grad is not None]
            for one, _ in mine:
                one.grad = None
            self._join()
        if not self.intact or self.parts.mark is None or not bool(self.parts.mark):
            self.parts.settled = True
            return None
        try:
            everyone = self._peers.gather(*self.parts.counts)
        except PeersLost:
            self.broken = True
            return None
        if all(missing == parts for missing, parts, _ in everyone):
            for one in self.trainable.all:
                one.grad = None
            for one, gradient in mine:
                one.grad = gradient
        return everyone

    def _join(self) -> None:
        """Take part in the reduction of the batch without a gradient."""
        if self._partial is not None:
            raise RuntimeError(
                "this rank computed no gradient for its part of the batch, which elastic.partial_backprop needs; call backward() "
                "in every batch, or leave partial_backprop out"
            )
        self._prepare_reduction()
        if self._ddp is None or self.broken:
            return
        self._expect_pass()
        with unfrozen(self._parameters):
            torch.autograd.backward(self._parameters, [torch.zeros_like(one) for one in self._parameters])

    def _tell_of_hook(self) -> None:
        """Warn once, on rank 0, of a hook of the script, which sees the gradient before it is whole.

        To look for one takes long, so only the 1st, 2nd, 4th, 8th, … step does.
        """
        if (
            self._told_of_hook
            or self.batch_number & (self.batch_number - 1)
            or (self._peers is not None and self._peers.rank)
            or not (name := self.trainable.hooked())
        ):
            return
        self._told_of_hook = True
        warn(
            f"a hook on {name} sees a part of the gradient, that of one rank and micro-batch: one that is not linear, such as a "
            "clamp, gives another result at another size; change gradients after backward() instead, if not run.accumulating"
        )

    def _tell_of_turns(self) -> None:
        """Warn once of a forward pass after the step in a batch of several micro-batches, as of a GAN that steps in turns."""
        if (
            self.stepped
            and not self._told_of_turns
            and self._done > self._samples
            and torch.is_grad_enabled()
        ):
            self._told_of_turns = True
            warn(
                "the model was called after optimizer.step() within a batch of several micro-batches: only the last of them "
                "sees the new parameters, so the result depends on the number of ranks; step all optimizers at the end of the "
                "batch, or accumulate nothing (max_local_batch)"
            )

    def zeroed(self) -> None:
        """Note that the script discards the gradients of the batches before the present one."""
        self.carried.zeroed()
        self.parts.discard_carried()

    def abandon(self) -> None:
        """Discard the gradients of an incomplete batch, because the script left its loop."""
        if self.accumulating:
            self.drop()

    def drop(self) -> None:
        """Discard the gradients of all parameters."""
        self.accumulating = False
        if not self._shards:
            self.trainable.list_again()
        for parameter in self.trainable.all:
            parameter.grad = None

    def is_complete(self) -> bool:
        """Return True if the gradient is that of the whole batch. Waits for operations in progress.

        An accelerator works asynchronously: it would carry out the optimizer's step even if the gradient
        never became complete. Therefore the program waits here, before the step.

        Raises:
            RuntimeError: the script has changed the layers of a sharded model.
        """
        self._refuse_changed_layers()
        if self._device.type == "cuda" and self._ddp is not None and self._peers is not None:
            with self._peers.waits.blocking():
                torch.cuda.current_stream(self._device).synchronize()
        if self.leaves_out():
            return False
        self.broken = not self.intact or not (self.commit is None or self.commit.agree())
        if self.intact and self.probe is not None:
            share = self._done / self._global_batch
            alone = self._ddp is None
            self.probe.whole(self._parameters, share=share, samples=self._global_batch, alone=alone)
        return self.intact

    def accept(self) -> bool:
        """Return True if the gradient is complete, and then have the optimizer step even if a peer is lost meanwhile."""
        self.stepped = self.is_complete()
        return self.stepped

    def break_off(self) -> None:
        """Record that a peer was lost, and that results of a sharded model are zeros until the next step."""
        self.broken = self.without_results = True

    @property
    def held(self) -> bool:
        """True while a parameter of the model has a gradient."""
        return any(one.grad is not None for one in self.trainable.all)

    @property
    def shard_weight(self) -> float:
        """Weight of the present micro-batch's gradient. FSDP averages those of the groups of ranks for each micro-batch."""
        return self._samples * self._groups / self._global_batch

    @property
    def nbytes(self) -> int:
        """Size of a whole gradient in bytes."""
        return sum(parameter.nbytes for parameter in self._parameters)

    @property
    def exchanges_trainable(self) -> bool:
        """True if the forward pass of a step tells the peers which parameters train."""
        return self._peers is not None and not self._shards

    @property
    def _parameters(self) -> list[nn.Parameter]:
        """Parameters that train now, as found last."""
        return self.trainable.parameters

    @property
    def intact(self) -> bool:
        """True while no lost peer is known."""
        return not self.broken and not (self._peers is not None and self._peers.aborted)

    def _forward_sharded(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass with a gradient weight for FSDP, where the gradient enters the model."""
        self._refuse_changed_layers()
        weight = self.shard_weight

        def weigh(output: torch.Tensor) -> torch.Tensor:
            if output.requires_grad:
                # A view, because one output may follow from another: a loss beside its logits.
                output = output.view_as(output)
                output.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]
            return output

        return tree_map_only(torch.Tensor, weigh, self.model.module(*args, **kwargs))

    def _refuse_changed_layers(self) -> None:
        if self._fixed is not None:
            self._fixed.refuse_changes()

    def _weight_without_peers(self) -> None:
        if self._shards:
            return
        self.model.set_forward(self._forward_alone)
        self._alone = True
        self._follow_alone(anew=True)

    def _follow_alone(self, *, anew: bool = False) -> None:
        """Weight the gradients of the parameters that train now, without peers."""
        if self.trainable.follow() or anew:
            self._unhook()
            for one in self._parameters:
                self._hooks.append(weigh_added(one, self._weigh_alone))
                self._hooks.append(one.register_post_accumulate_grad_hook(self._show))  # type: ignore[no-untyped-call]

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _weigh_alone(self) -> float:
        self.parts.reached = True
        return self._weight

    def _forward_alone(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, and show its output to the probe if it is that of the whole step."""
        self._follow_alone()
        self._tell_of_turns()
        output = self.model.module(*args, **kwargs)
        if self.probe is not None and torch.is_grad_enabled() and self._samples == self._global_batch:
            self.probe.forward(output, self._parameters, self._samples)
        return output

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run DDP's forward pass after its collectives, whose errors are recorded instead of raised in the script."""
        self._tell_of_turns()
        if torch.is_grad_enabled():
            self._prepare_reduction()
        if self._ddp is None or self.broken:
            return self.model.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._ddp(*args, **kwargs)
        try:
            output = (
                self._ddp(*args, **kwargs)
                if self._partial is None
                else self._partial.forward(self._ddp, args, kwargs)
            )
        except PeersLost:
            self.broken = True
            return self.model.module(*args, **kwargs)
        if self._unused is None or self.accumulating:
            return output
        return self._unused.await_backward(output)

    def _prepare_reduction(self) -> None:
        """Do with the peers what comes before each pass whose gradients are averaged. A lost peer is recorded."""
        if not self.broken:
            self._follow_with_peers()
        if self._ddp is None or self.broken:
            return
        if self._fresh:
            try:
                send_buffers(self.trainable.buffers)
            except GROUP_ERRORS as error:
                self._lose(error)
        self._fresh = False
        self._renew_buckets()

    def _follow_with_peers(self) -> None:
        """Reduce the gradients of all parameters that train in this step, of which the first pass tells the peers."""
        if self.accumulating:
            self.trainable.see()
            return
        try:
            first, self._untold = self._untold, False
            changed = (
                self.trainable.follow_with_peers(self._exchange) if first else self.trainable.follow_seen()
            )
        except PeersLost:
            self.broken = True
            return
        if changed and self._peers is not None:
            self._reduce(self._peers)

    def _scale(self, factor: float) -> None:
        for parameter in self.trainable.all if factor != 1.0 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _show(self, parameter: torch.Tensor) -> None:
        if self.probe is not None:
            self.probe.accumulated(parameter, last=not self.accumulating, of=self._parameters)

    def _weighted_sum(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Reduce one bucket of DDP, with peers. It records a lost peer and raises no error in the script."""
        gradient = bucket.buffer()
        if bucket.is_last():
            self.meter.end()
            # DDP queues its callback, which completes the gradient, between these two.
            after_backward(lambda: after_backward(lambda: self._finish_pass(gradient)))
            if self.probe is not None:
                done = functools.partial(self.probe.completed, self._parameters)
                after_backward(lambda: after_backward(done))
        assert self._peers is not None
        if self.left_out:
            return self._as_it_is(gradient)
        partial = self._partial if self._partial is not None and self._partial.active else None
        source = None
        if partial is not None:
            source = partial.source(bucket.parameters())
            partial.weigh(bucket.gradients(), bucket.parameters(), self._samples)
        elif self.parts.missing:
            gradient.fill_(NOT_A_NUMBER)
        elif self._weight == 0.0:
            gradient.fill_(NOTHING)  # multiplication by 0 would keep a NaN
        else:
            gradient.mul_(self._weight)
        if self.probe is not None:
            self.probe.local(bucket.gradients, bucket.parameters)
        try:
            work: Any = (
                dist.all_reduce(gradient, async_op=True)
                if source is None
                else dist.broadcast(gradient, src=source, async_op=True)
            )
            future = work.get_future()
        except GROUP_ERRORS as error:
            self._lose(error)
            return self._as_it_is(gradient)
        # A separate future, because gloo sometimes misses a loss, and `abort` must end the wait then.
        result = self._peers.promise(gradient, work)
        future.add_done_callback(lambda done: result.fulfil(self._take(done, gradient)))
        return result.future

    def _as_it_is(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        assert self._peers is not None
        result = self._peers.device.future_of(gradient)
        result.set_result(gradient)
        return result

    def _finish_pass(self, gradient: torch.Tensor) -> None:
        """Note the end of a backward pass, whose last bucket had this reduced gradient."""
        self.parts.end_pass(gradient[:1].isnan())
        if self._unused is not None:
            self._unused.finish()

    def _take(self, done: Any, gradient: torch.Tensor) -> torch.Tensor:
        try:
            return done.value()[0]  # type: ignore[no-any-return]
        except GROUP_ERRORS as error:
            self._lose(error)
            return gradient

    def _lose(self, error: Exception) -> None:
        """Record a lost peer; raise an error that means something else."""
        if not is_loss(error):
            raise error
        self.broken = True
