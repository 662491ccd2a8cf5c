"""Sources of training batches: the steps that take them, and the commit of each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import torch

from headway.train.data.batching import Batching
from headway.train.data.ledger import Ledger
from headway.train.data.position import Step
from headway.train.streaming import Reading
from headway.train.training import Training

ENDLESS = 2**62
"""End, in samples, of data without epochs."""


class BatchSource(ABC):
    """This rank's part of the steps of a training run, with the samples collated and on the run's device.

    In `run.epochs`, iteration yields the batches of the rest of the epoch. In `run.train_steps`, it yields those of
    the present step, and `next` returns the next of them. Between two steps training may save a checkpoint, or stop.
    """

    def __init__(
        self,
        *,
        batching: Batching,
        seed: int,
        device: torch.device,
        signature: int,
        epoch_samples: int | None,
    ) -> None:
        """Set the data: `signature` is equal on ranks with the same data.

        `epoch_samples` is the length of an epoch; None: the data have no epochs.
        """
        self.batching = batching
        self.seed = seed
        self.signature = signature
        self.epoch_samples = epoch_samples
        self.reading = Reading()
        """Reading of data whose position is more than a number of samples."""
        self.within_step = False
        """True while the script works on a step, rather than between two steps."""
        self.ends_epoch = False
        """True if the batch yielded last is this rank's last one of the epoch."""
        self._device = device
        self._training: Training | None = None
        self._by_steps = False
        self._ahead: Iterator[Any] = iter(())
        self._present: Iterator[Any] | None = None
        self._left = 0

    def attach(self, training: Training, *, by_steps: bool) -> None:
        """Make iteration continue from the position of `training`."""
        self._training, self._by_steps = training, by_steps

    @abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """Prepare the data of the rest of the epoch."""

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Return every micro-batch from the present position on, in the order of the steps."""

    @abstractmethod
    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of the samples at these positions in the epoch."""

    def __iter__(self) -> Iterator[Any]:
        return self._of_step() if self._by_steps else self._of_epoch()

    def __next__(self) -> Any:
        for batch in self._of_step():
            return batch
        raise RuntimeError(
            "this step has no further batch; take one batch each time that `run.train_steps` begins the body, "
            "or loop over all batches of the step"
        )

    def _of_epoch(self) -> Iterator[Any]:
        if self._training is None:
            raise RuntimeError(
                "iterate over the training data inside `run.epochs(n)` or `run.train_steps(n)`"
            )
        with closing(self.steps()) as steps:
            for _ in steps:
                assert self._present is not None
                yield from self._present

    def _of_step(self) -> Iterator[Any]:
        if self._present is None:
            raise RuntimeError("take batches inside `for step in run.train_steps(n)`")
        return self._present

    def fetch_step(self) -> list[Any]:
        """Fetch and return all batches of the present step, which are still to be taken."""
        batches = list(self._ahead)
        self._ahead = iter(batches)
        return batches

    def bodies(self, training: Training) -> Iterator[int]:
        """Yield the number of each step until the end of the epoch, or of training, until its batches are taken.

        Raises:
            RuntimeError: the loop body took no batch, so training would not advance.
        """
        with closing(self.steps()) as steps:
            for _ in steps:
                while left := self._left:
                    yield training.place.step_number
                    if self._left == left:
                        raise RuntimeError("the body of `run.train_steps` took no batch of the training data")

    def steps(self) -> Generator[Step, None, None]:
        """Yield the remaining steps of the epoch. A step is committed when the next is asked for."""
        assert self._training is not None
        training = self._training
        epoch, end = training.place.position.epoch, self.epoch_samples or ENDLESS
        self.start_epoch(epoch)
        while training.place.position.epoch == epoch and (
            training.place.position.samples < end and not training.finished
        ):
            plan = training.plan
            batches = self.batches()
            for step in training.split.steps(training.place.position.samples, end):
                if training.begin_step(step, self.ledger_of):
                    self._left = len(step.micro_batches)
                    self._ahead = map(self._on_device, islice(batches, len(step.micro_batches)))
                    self._present = self._micro_batches(training, step)
                    try:
                        yield step
                    except GeneratorExit:  # the script left its loop, perhaps after the optimizer step
                        training.abandon_step(step, self.ledger_of)
                        raise
                    finally:
                        self.within_step, self._present = False, None
                    training.end_step(step, self.ledger_of)
                if training.plan != plan or training.finished:
                    break  # prefetched batches belong to the previous plan

    def _micro_batches(self, training: Training, step: Step) -> Iterator[Any]:
        last = len(step.micro_batches) - 1
        for number, micro_batch in enumerate(step.micro_batches):
            batch = next(self._ahead)
            training.gradients.begin(
                len(micro_batch),
                global_batch=len(step.batch),
                first=number == 0,
                last=number == last,
                partial=step.partial,
            )
            self.within_step = True
            self.ends_epoch = number == last and step.batch.stop == self.epoch_samples
            self._left = last - number
            yield batch

    def _on_device(self, batch: Any) -> Any:
        return batch if self._device.type == "cpu" else _to_device(batch, self._device)


def _to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
