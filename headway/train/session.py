"""The interface for training scripts: `init`, and the `Run` that it returns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, IterableDataset

from headway.contract.runtime import Hello
from headway.preemption import StopRequest
from headway.storage.stores import open_storage
from headway.train.checkpoint.replica import Place, Replica, Stateful
from headway.train.checkpoint.saving import Saver
from headway.train.checkpoint.store import Checkpoints, Schedule
from headway.train.collectives.registry import make_backend
from headway.train.data.batching import Batching, Bounds
from headway.train.data.goal import TrainingGoal, Until, ends_by_progress
from headway.train.gradients.averaging import Gradients, step_once_per_batch
from headway.train.gradients.device import memory_of
from headway.train.gradients.schedule import OncePerBatch
from headway.train.host.environment import Environment
from headway.train.loader import Loader
from headway.train.membership.control import Mailbox, write_stacks_on_request
from headway.train.membership.team import Team
from headway.train.state.memory import keep_freed_memory, touch
from headway.train.trackers.sender import TrackedReport
from headway.train.training import Training
from headway.train.value_sender import ValueSender

_HELD_BESIDE_PARAMETERS = 4
"""Host memory that a rank holds besides its parameters, in multiples of their size.

Optimizers usually keep two averages of each parameter. DDP keeps gradient buckets, and rearranges them in its
second step.
"""


def init(*, timeout_s: float = 300.0, collective: str | None = None) -> Run:
    """Join the training run to which this process belongs, according to its environment variables.

    Under Headway the process is one rank of a job. Under torchrun it is one of several ranks without a
    scheduler. Started by hand it is alone. The same script works in all three cases. Checkpoints are saved if
    `HEADWAY_CHECKPOINT_URI` is set. Call the function once, in the main thread: it installs a SIGTERM handler
    that requests a stop after the current step.

    Args:
        timeout_s: seconds that a rank waits for its peers before it fails. It must exceed the longest time that one
            rank works alone, such as rank 0 saving a checkpoint.
        collective: name of the collective backend: `gloo`, `nccl`, or one that an installed package registers. None: NCCL on
            GPUs, gloo on CPUs. It must be the same on every rank.

    Raises:
        ValueError: an environment variable has an invalid value.
        CollectiveUnavailable: the backend is not installed, or does not work here.
        TrackerUnavailable: the job asks for a tracker whose package is not installed, or without its address.
    """
    environment = Environment.read(os.environ)
    stop = StopRequest()
    stop.listen()
    write_stacks_on_request(environment.control, environment.rank)
    mailbox = Mailbox(environment.control, rank=environment.rank, generation=environment.generation)
    mailbox.send(Hello)
    device = _device(environment.local_rank)
    if environment.live and device.type == "cpu":
        keep_freed_memory()
    team = Team(environment, make_backend(collective, device), timeout_s, stop)
    team.start(environment)
    return Run(environment, device, team, mailbox, stop)


class Run:
    """A training run, as one of its ranks sees it. `device` is that of this rank's model and batches."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        team: Team,
        mailbox: Mailbox,
        stop: StopRequest,
    ) -> None:
        self.device = device
        self._team = team
        self._environment = environment
        self._mailbox = mailbox
        self._stop = stop
        self._began_s = time.perf_counter()
        self._training: Training | None = None
        self._loader: Loader | None = None
        self._entered = False
        self._value_sender = ValueSender(mailbox, environment)

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
        """Epochs of training progress since the job began, in epochs with the job's own batch."""
        if self._training is None or self._loader is None:
            return 0.0
        return self._training.place.progress / self._loader.dataset_samples

    def prepare(self, model: nn.Module, optimizer: Optimizer, *more: Any) -> tuple[Any, ...]:
        """Move the model to the device, continue from the newest checkpoint, and keep replicas equal.

        Args:
            model: the model that every rank trains. The result is a wrapper that averages gradients over the present ranks
                (by `DistributedDataParallel`) and has the model itself as `module`.
            optimizer: the optimizer of the model's parameters. The same object is returned, but its `step` and `zero_grad`
                do nothing while a global batch is incomplete (see `accumulating`). Therefore call `optimizer.zero_grad`, not
                the model's.
            more: other objects that belong in a checkpoint and have `state_dict` and `load_state_dict`. Learning-rate
                schedulers are wrapped so that their `step` waits for the whole batch, too.

        Returns:
            As many objects as were given, in the same order.

        Raises:
            RuntimeError: called twice, or the checkpoint does not fit the model.
            TypeError: an object's state cannot be kept in a checkpoint.
            Fenced: a newer generation of the job runs.
        """
        if self._training is not None:
            raise RuntimeError("prepare() was called before; pass all objects in one call")
        model.to(self.device)
        gradients = Gradients(model, device=self.device, min_depth=self._environment.min_depth)
        wrapped = [OncePerBatch(one, gradients) if isinstance(one, LRScheduler) else one for one in more]
        objects: list[Stateful] = [model, optimizer, *wrapped]
        schedule = Schedule(
            self._environment.checkpoint_every_s, time.monotonic(), self._environment.losses_per_h
        )
        self._training = Training(
            Replica(objects),
            gradients,
            team=self._team,
            mailbox=self._mailbox,
            stop=self._stop,
            saver=Saver(_checkpoints(self._environment), schedule, self._mailbox),
            began_s=self._began_s,
        )
        self._training.prepare()
        if self._environment.live and self.device.type == "cpu":
            touch(_HELD_BESIDE_PARAMETERS * gradients.nbytes)
        step_once_per_batch(optimizer, gradients)
        return gradients.model, optimizer, *wrapped

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        global_batch: int,
        max_global_batch: int | None = None,
        max_local_batch: int | None = None,
        balance: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Loader:
        """Return the loader of training batches, which yields every sample once an epoch at any number of ranks.

        Each step takes the next `global_batch` samples of a shuffled order and divides them over the ranks.
        The last step of an epoch takes the rest. The script computes the mean loss of the samples that it
        receives.

        Args:
            dataset: has `len()` and returns a sample for an index. It must be the same on every rank.
            global_batch: samples in an optimizer step, all ranks together. A job's `batch.global` overrides it.
            max_global_batch: upper limit of an adaptive global batch. A smaller `batch.max_global` of the job applies instead.
            max_local_batch: most samples that one rank receives at a time. Beyond it, a rank accumulates gradients over
                several micro-batches. None: no limit. A job's `batch.max_local` overrides it.
            balance: give slower ranks, by measurement, fewer samples of each step.
            seed: seed of the shuffled order.
            num_workers: processes that prefetch samples; 0 fetches in this process.
            collate_fn: makes a batch of a list of samples, as for torch's `DataLoader`.

        Raises:
            TypeError: the dataset cannot be indexed.
            ValueError: a size is out of bounds, or the dataset is empty.
            RuntimeError: the run has a loader already.
        """
        if self._loader is not None:
            raise RuntimeError(
                "a run has one training loader, and it exists already; evaluate with torch's DataLoader"
            )
        samples = _checked_length(dataset, seed, global_batch, max_global_batch, max_local_batch)
        environment = self._environment
        limits = [environment.most_global_batch, max_global_batch, samples]
        bounds = Bounds(
            global_batch=min(environment.global_batch or global_batch, samples),
            most_global=min(filter(None, limits)) if environment.most_global_batch else None,
            start_global=environment.start_global_batch,
            start_effect=environment.batch_effect,
            max_local=environment.max_local_batch or max_local_batch,
            rule=environment.lr_rule,
            balance=environment.balance if balance else None,
        )
        memory, speeds = memory_of(self.device), environment.speeds
        self._loader = Loader(
            dataset,
            batching=Batching(bounds, self.rank, self.world_size, memory_bytes=memory, speeds=speeds),
            seed=seed,
            device=self.device,
            num_workers=num_workers,
            collate_fn=collate_fn,
        )
        return self._loader

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
        if count < 0:
            raise ValueError(f"the number of epochs is {count}; it must be at least 0")
        if self._training is None or self._loader is None:
            raise RuntimeError("call run.prepare(...) and run.loader(...) before run.epochs(...)")
        if self._entered:
            raise RuntimeError("run.epochs(...) was called before; train all epochs in one loop")
        loader, training = self._loader, self._training
        goal = TrainingGoal(
            epochs=count,
            dataset_samples=loader.dataset_samples,
            steps=loader.steps_per_epoch,
            by_progress=ends_by_progress(until, adaptive=loader.batching.adaptive),
        )
        self._entered = True
        training.feed(seed=loader.seed, batching=loader.batching, goal=goal)
        loader.attach(training)
        return self._remaining(training)

    def _remaining(self, training: Training) -> Iterator[int]:
        training.join()
        while not training.finished:
            epoch = training.place.position.epoch
            yield epoch
            training.end_epoch(epoch)
        training.complete()
        self._value_sender.complete = True

    @property
    def accumulating(self) -> bool:
        """True while the step continues with another batch, so that `optimizer.step()` will do nothing.

        Only a script that uses gradients needs it, for example to clip them: gradients are complete when it
        is False.
        """
        return self._training is not None and self._training.gradients.accumulating

    def report(self, **metrics: Any) -> None:
        """Report values for display: numbers, or tensors of one element.

        Decisions read only `loss` and the metric of `goal.target`, whose value ends the job. Only rank 0's values
        count. Values that are not finite (NaN, infinity) are left out, with a line on stderr. Rank 0 also prints the
        values, so the log contains them.

        Raises:
            TypeError, ValueError: a value is not a number.
        """
        if not self.is_main:
            return
        place = self._training.place if self._training is not None else Place()
        report = TrackedReport(
            step=place.steps + (self._loader is not None and self._loader.within_step),
            first_step=self._training.first_step if self._training is not None else 0,
            epoch=place.position.epoch,
            samples=place.samples,
            generation=self.generation,
            world_size=self.world_size,
            at_s=time.time(),
            values={name: _number(value) for name, value in metrics.items()},
        )
        self._value_sender.send(report)


def _checked_length(dataset: Dataset[Any], seed: int, *sizes: int | None) -> int:
    """Return the length of the dataset after checking it and the other arguments of `Run.loader`."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError("the dataset must have a length and give a sample for an index (a map-style dataset)")
    names = ("global_batch", "max_global_batch", "max_local_batch")
    for name, value in zip(names, sizes, strict=True):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}; it must be at least 0 and below 2**63")
    if not len(dataset):
        raise ValueError("the dataset is empty; there is nothing to train on")
    return len(dataset)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _checkpoints(environment: Environment) -> Checkpoints | None:
    if environment.checkpoint_uri is None:
        return None
    return Checkpoints(
        open_storage(environment.checkpoint_uri, environment.storage_keys),
        generation=environment.generation,
        keep=environment.checkpoint_keep,
    )
