"""The interface for training scripts: `init`, and the `Run` that it returns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from headway.contract.runtime import ENV_BESIDE, Hello
from headway.errors import HeadwayError
from headway.preemption import StopRequest
from headway.train.assembly import assemble_training
from headway.train.checkpoint.replica import Place, Stateful
from headway.train.collectives.registry import make_backend
from headway.train.data.goal import TrainingGoal, Until, ends_by_progress
from headway.train.gradients.averages import average_once_per_batch
from headway.train.gradients.averaging import Gradients
from headway.train.gradients.device import device_of
from headway.train.gradients.stepping import SkippedSteps, is_optimizer, name_unprepared, step_once_per_batch
from headway.train.gradients.wrapping import once_per_batch
from headway.train.host.environment import Environment
from headway.train.membership.changes import Callback, Changes, Preemption
from headway.train.membership.control import Mailbox, write_stacks_on_request
from headway.train.membership.team import Team
from headway.train.run_data import RunData
from headway.train.sharding.template import Parallelize
from headway.train.source import BatchSource
from headway.train.state.memory import keep_freed_memory, touch_for_training
from headway.train.step_feed import StepFeed
from headway.train.trackers.sender import TrackedReport
from headway.train.training import Training
from headway.train.value_sender import ValueSender, number_of

if TYPE_CHECKING:
    from headway.train.gradients.pipeline import LossFunction, Pipeline


def init(*, timeout_s: float = 300.0, collective: str | None = None) -> Run:
    """Join the training run to which this process belongs, according to its environment variables.

    Under Headway the process is one rank of a job. Under torchrun it is one of several ranks without a scheduler. Started by
    hand it is alone. The same script works in all three cases. Checkpoints are saved if `HEADWAY_CHECKPOINT_URI` is set. Call
    the function once, in the main thread: it installs a SIGTERM handler that requests a stop after the current step.

    Args:
        timeout_s: seconds that a rank waits for its peers before it fails. It must exceed the longest time that one
            rank works alone, such as rank 0 saving a checkpoint.
        collective: name of the collective backend: `gloo`, `nccl`, or one that an installed package registers. None: NCCL on
            GPUs, gloo on CPUs. It must be the same on every rank.

    Raises:
        HeadwayError: the process is a command of `headway exec`.
        ValueError: an environment variable has an invalid value.
        CollectiveUnavailable: the backend is not installed, or does not work here.
        TrackerUnavailable: the job asks for a tracker whose package is not installed, or without its address.
    """
    if os.environ.get(ENV_BESIDE):
        raise HeadwayError(
            "This process is a command beside a rank (headway exec), so it cannot take part in the job's training.",
            f"To train alone here, unset {ENV_BESIDE} and RANK; to train with slots of its own, use headway submit.",
        )
    environment = Environment.read(os.environ)
    stop = StopRequest(environment.stop_announcement)
    stop.listen(for_threads=True)
    write_stacks_on_request(environment.control, environment.rank)
    mailbox = Mailbox(environment.control, rank=environment.rank, generation=environment.generation)
    mailbox.send(Hello)
    device = device_of(environment.local_rank)
    if environment.live and device.type == "cpu":
        keep_freed_memory()
    team = Team(environment, make_backend(collective, device), timeout_s, stop, mailbox)
    team.start(environment)
    return Run(environment, device, team, mailbox, stop)


class Run(RunData):
    """A training run, as one of its ranks sees it. `device` is that of this rank's model and batches."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        team: Team,
        mailbox: Mailbox,
        stop: StopRequest,
    ) -> None:
        super().__init__(environment, device, team)
        self._value_sender = ValueSender(mailbox, environment, is_main=lambda: self.is_main)
        self._changes = Changes(team, stop, environment.control)
        self._assemble = partial(
            assemble_training,
            environment=environment,
            device=device,
            team=team,
            mailbox=mailbox,
            stop=stop,
            changes=self._changes,
            values=self._value_sender.values,
            began_s=time.perf_counter(),
        )
        self._training: Training | None = None
        self._entered = False

    @property
    def rank(self) -> int:
        """Number of this process, from 0 to `world_size` - 1. It may change when members change."""
        return self._team.rank

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return self._team.world_size

    @property
    def is_main(self) -> bool:
        """True on rank 0, the rank that should print and write files."""
        return self._team.rank == 0

    @property
    def generation(self) -> int:
        """Version number of the job's allocation; 0 outside Headway."""
        return self._team.generation

    @property
    def steps(self) -> int:
        """Optimizer steps that the job has taken since it began."""
        return self._training.place.steps if self._training is not None else 0

    @property
    def progress(self) -> float:
        """Training progress since the job began in epochs with the job's own batch; in its steps if the data have no epochs."""
        if self._training is None or self._source is None:
            return 0.0
        place, length = self._training.place, self._source.epoch_samples
        return place.progress / length if length is not None else place.reference_steps

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *more: Any,
        parallelize: Parallelize | None = None,
        mesh: Sequence[str] = ("fsdp",),
        local: Sequence[str] = (),
    ) -> tuple[Any, ...]:
        """Move the model to the device, continue from the newest checkpoint, and keep replicas equal.

        Args:
            model: the model that every rank trains. The result is a wrapper that averages gradients over the present ranks
                (by `DistributedDataParallel`) and has the model itself as `module`.
            optimizer: the optimizer of the model's parameters. The same object is returned, but its `step` and `zero_grad`
                do nothing while a global batch is incomplete (see `accumulating`). Therefore call `optimizer.zero_grad`, not
                the model's.
            more: other objects that belong in a checkpoint and have `state_dict` and `load_state_dict`. Learning-rate
                schedulers and `GradScaler`s are wrapped so that their methods wait for the whole batch, too, as do
                further optimizers.
            parallelize: function of the model and a `DeviceMesh` of all ranks that shards the model (FSDP2's `fully_shard`), in
                place or by returning another one. `model` must be plain. The library calls the function again at every size,
                with a copy of the plain model without values, so the job changes size in place.
            mesh: names of the dimensions of that mesh: `fsdp`, beside it `replicate` for groups of ranks with equal shards
                (HSDP), `tp` for tensor parallelism, and `pp` for pipeline stages (see `pipeline`). Their sizes follow from the job
                file's `parallel`.
            local: names or patterns (`*.running_mean`) of parameters and buffers that ranks do not compare: they may differ.

        Returns:
            As many objects as were given, in the same order.

        Raises:
            RuntimeError: called twice, or the checkpoint does not fit the model.
            TypeError: an object's state cannot be kept in a checkpoint, or the model to shard cannot be copied.
            ValueError: the model to shard is sharded already, does not have all parameters of the optimizers, or does not use
                the job's `parallel`; two of its optimizers have the same parameter; or `local` matches no tensor.
            Fenced: a newer generation of the job runs.
        """
        if self._training is not None:
            raise RuntimeError("prepare() was called before; pass all objects in one call")
        if parallelize is None:
            if self._team.mesh.pipeline > 1:
                raise ValueError(
                    "the job has parallel.pp or parallel.tp, but prepare() has no `parallelize` that uses it"
                )
            model.to(self.device)
        gradients = Gradients(model, device=self.device, min_depth=self._environment.min_depth)
        parameter_bytes = gradients.nbytes  # before the parameters are sharded
        wrapped = [once_per_batch(one, gradients) for one in more]
        objects: list[Stateful] = [model, optimizer, *wrapped]
        self._training = self._assemble(objects, gradients, parallelize=parallelize, mesh=mesh, local=local)
        self._training.prepare()
        if self._environment.live and self.device.type == "cpu":
            share = 1 if parallelize is None else self.world_size
            touch_for_training(parameter_bytes // share)
        skipped = SkippedSteps()
        for one in (optimizer, *more):
            if is_optimizer(one):
                step_once_per_batch(one, gradients, skipped)
            elif isinstance(one, AveragedModel):
                average_once_per_batch(one, gradients)
        name_unprepared(gradients, [one for one in (optimizer, *more) if isinstance(one, Optimizer)])
        return gradients.model, optimizer, *wrapped

    def pipeline(self, loss: LossFunction, *, micro_batches: int) -> Pipeline:
        """Return the pipeline that trains the stages of a prepared model, whose mesh has the dimension `pp`.

        Args:
            loss: function of the last stage's output and the target that returns the mean loss of their samples.
            micro_batches: number of parts of a batch, which stages compute at the same time.

        Raises:
            RuntimeError: called before `prepare`.
            ValueError: `micro_batches` is below 1.
        """
        from headway.train.gradients.pipeline import Pipeline  # noqa: PLC0415  # takes a second to import

        if self._training is None:
            raise RuntimeError("call run.prepare(...) before run.pipeline(...)")
        return Pipeline(self._training.gradients, loss, micro_batches, self.device)

    def epochs(self, count: int, *, until: Until | None = None) -> Iterator[int]:
        """Return the numbers of the remaining epochs of `count`, from the one that a checkpoint interrupted.

        After the last epoch, the result is saved in a final checkpoint and the training counts as complete. A
        script that leaves the loop early (`break`) gets neither, and every rank must leave it.

        Args:
            count: epochs of the job's own batch.
            until: `progress` ends training once it has made the progress of `count` epochs with the job's own batch. It
                reads more data if a larger batch makes samples less efficient, and may end within an epoch. `epochs`
                ends it after `count` epochs of data. None: `progress` in a job with an adaptive `batch.policy`.
                With a constant batch both are the same.

        Raises:
            RuntimeError: called twice, or before `prepare` and `loader`.
            ValueError: `count` is below 0, `until` has another value, or the checkpoint belongs to other data.
        """
        source, training = self._enter(count, "epochs")
        if source.epoch_samples is None:
            raise RuntimeError("these data have no epochs; train with run.train_steps(...)")
        by_progress = ends_by_progress(until, adaptive=source.batching.adaptive)
        batch = source.batching.bounds.global_batch
        goal = TrainingGoal.of_epochs(count, source.epoch_samples, batch, by_progress=by_progress)
        self._feed(training, source, goal, by_steps=False)
        return self._remaining_epochs(training)

    def epochs_of_steps(self, count: int) -> Iterator[int]:
        """Return the numbers of the epochs in which the remaining steps of `count` lie, for a loop over epochs.

        Training ends as with `train_steps`, usually within the last epoch, whose loop over the loader then ends.

        Raises:
            RuntimeError: called twice, before `prepare` or `loader`, or the data have no epochs.
            ValueError: `count` is below 0, or the checkpoint belongs to other data.
        """
        source, training = self._enter(count, "steps")
        if source.epoch_samples is None:
            raise RuntimeError("these data have no epochs; train with run.train_steps(...)")
        self._feed(training, source, _goal_of_steps(count, source), by_steps=False)
        return self._remaining_epochs(training)

    @property
    def finished(self) -> bool:
        """True once the training loop has reached its end, so that no step follows; False before the loop."""
        return self._entered and self._training is not None and self._training.finished

    def train_steps(self, count: int) -> Iterator[int]:
        """Return the numbers of the remaining steps of `count`, from the one that a checkpoint interrupted.

        The loop body takes the batches of its step from the training data: all of them (`for batch in data`), or one
        (`next(data)`). In the second case the body runs again for the same step while `accumulating` is true.
        After the last step, the result is saved in a final checkpoint and the training counts as complete. A
        script that leaves the loop early (`break`) gets neither, and every rank must leave it.

        Args:
            count: optimizer steps with the job's own global batch. In a job with an adaptive `batch.policy` training
                ends at their progress: a larger batch takes fewer steps, and the numbers have gaps.

        Raises:
            RuntimeError: called twice, before `prepare` or the data, or the body took no batch.
            ValueError: `count` is below 0, or the checkpoint belongs to other data.
        """
        source, training = self._enter_steps(count)
        return self._remaining_steps(training, source)

    def step_feed(self, count: int) -> StepFeed:
        """Return the remaining steps of `count` for a framework whose own loop takes whole steps.

        Training ends as with `train_steps`.

        Raises:
            RuntimeError: called twice, or before `prepare` or `loader`.
            ValueError: `count` is below 0, or the checkpoint belongs to other data.
        """
        source, training = self._enter_steps(count)
        return StepFeed(training, source, lambda: self._complete(training))

    def evaluate_every(self, steps: int) -> bool:
        """Return True in the body of step 0 and in that which follows each `steps` steps, before its first batch.

        A job that continues from a checkpoint does not evaluate again before its first step. All ranks get the same answer, also with an adaptive batch, whose steps have gaps in their numbers. The time
        of such a step does not count in the speed of the job.

        Raises:
            ValueError: `steps` is below 1.
        """
        if steps < 1:
            raise ValueError(f"an evaluation every {steps} steps is not possible; give at least 1")
        training, source = self._training, self._source
        if training is None or source is None or source.within_step or not training.place.completes(steps):
            return False
        training.evaluates = True
        return True

    def _enter(self, count: int, unit: str) -> tuple[BatchSource, Training]:
        """Return data and training, once, at the beginning of the training loop."""
        if count < 0:
            raise ValueError(f"the number of {unit} is {count}; it must be at least 0")
        if self._training is None or self._source is None:
            raise RuntimeError("call run.prepare(...) and run.loader(...) before the training loop")
        if self._entered:
            raise RuntimeError("the training loop was begun before; train in one loop")
        return self._source, self._training

    def _enter_steps(self, count: int) -> tuple[BatchSource, Training]:
        source, training = self._enter(count, "steps")
        self._feed(training, source, _goal_of_steps(count, source), by_steps=True)
        return source, training

    def _feed(self, training: Training, source: BatchSource, goal: TrainingGoal, *, by_steps: bool) -> None:
        self._entered = True
        training.feed(
            signature=source.signature,
            seed=source.seed,
            reading=source.reading,
            batching=source.batching,
            goal=goal,
        )
        source.attach(training, by_steps=by_steps)

    def _remaining_epochs(self, training: Training) -> Iterator[int]:
        training.join()
        while not training.finished:
            epoch = training.place.position.epoch
            try:
                yield epoch
            except GeneratorExit:
                training.left()
                raise
            training.end_epoch(epoch)
        self._complete(training)

    def _remaining_steps(self, training: Training, source: BatchSource) -> Iterator[int]:
        training.join()
        while not training.finished:
            epoch = training.place.position.epoch
            try:
                yield from source.bodies(training)
            except GeneratorExit:
                training.left()
                raise
            training.end_epoch(epoch)
        self._complete(training)

    def _complete(self, training: Training) -> None:
        training.complete()
        self._value_sender.complete = True

    def preemption(self) -> Preemption | None:
        """Return the stop of the whole job on which its ranks have agreed; None while they train.

        It is the same on every rank from the step boundary on at which the ranks stop, so callbacks of `before_change` see it.
        """
        return self._changes.preemption

    def before_change(self, callback: Callback) -> Callback:
        """Call the function with each planned `Change` before it, and before a stop. Returns it, so it serves as a decorator.

        Each rank of the old members calls it at the same step boundary, also one that leaves; a lost rank gives no warning. A
        stop saves the state after it. An error in it ends the process.
        """
        self._changes.before.append(callback)
        return callback

    def after_change(self, callback: Callback) -> Callback:
        """Call the function with each `Change` after it, lost ranks included. Returns it, so it serves as a decorator.

        Each new member calls it before its next step, also one that joins; no start does, nor a move through a checkpoint.
        """
        self._changes.after.append(callback)
        return callback

    @property
    def accumulating(self) -> bool:
        """True while the step continues with another batch, so that `optimizer.step()` will do nothing.

        Only a script that uses gradients needs it, for example to clip them: gradients are complete when it is False.
        """
        return self._training is not None and self._training.gradients.accumulating

    @property
    def stepped(self) -> bool:
        """True once the optimizer has changed the parameters in this step.

        It has not while batches are accumulated, nor in a step that is repeated because a peer was lost. A script that
        averages the parameters itself needs it.
        """
        return self._training is not None and self._training.gradients.stepped

    def report(self, **metrics: Any) -> None:
        """Report values for display: numbers, or tensors of one element.

        In the training loop, each value is the mean over the ranks that report it, known and sent one step later. Where only
        rank 0 reports, it is rank 0's own, as before and after the loop. Decisions read only `loss` and the metric of
        `goal.target`, whose value ends the job. Values that are not finite (NaN, infinity) are left out, with a line on
        stderr, and so are values that the loss of a peer of a sharded model made wrong. Rank 0 also prints the values.

        Raises:
            TypeError, ValueError: a value is not a number.
        """
        if self._training is not None and self._training.gradients.without_results:
            return
        place = self._training.place if self._training is not None else Place()
        report = TrackedReport(
            step=place.steps + (self._source is not None and self._source.within_step),
            first_step=self._training.first_step if self._training is not None else 0,
            epoch=place.position.epoch,
            samples=place.samples,
            generation=self.generation,
            world_size=self.world_size,
            at_s=time.time(),
            values={name: number_of(value) for name, value in metrics.items()},
        )
        self._value_sender.values.add(report, alone=self.world_size == 1)


def _goal_of_steps(count: int, source: BatchSource) -> TrainingGoal:
    batching = source.batching
    batch = batching.bounds.global_batch
    return TrainingGoal.of_steps(count, source.epoch_samples, batch, by_progress=batching.adaptive)
