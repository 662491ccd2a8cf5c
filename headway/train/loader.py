"""The training loader: batches of the remaining steps, and the commit of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from headway.train.data.batching import Batching
from headway.train.data.position import Step, order
from headway.train.training import Training


class Loader:
    """This rank's part of the steps of the current epoch. Made by `Run.loader`.

    The loader yields the samples of one micro-batch, collated and on the run's device. When the loop asks for
    the next batch, the loader commits the finished step. Between two steps training may save a checkpoint, or
    stop.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batching: Batching,
        seed: int,
        device: torch.device,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        assert isinstance(dataset, Sized)
        self.dataset_samples = len(dataset)
        self.batching = batching
        self.seed = seed
        self._dataset = dataset
        self._device = device
        self._num_workers = num_workers
        self._collate_fn = collate_fn
        self._training: Training | None = None
        self.within_step = False
        """True while the script works on a step, rather than between two steps."""
        self.ends_epoch = False
        """True if the batch yielded last is this rank's last one of the epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch with the job's own batch, in which learning-rate schedules count.

        With accumulation the loop's body runs more often.
        """
        return -(-self.dataset_samples // self.batching.bounds.global_batch)

    def attach(self, training: Training) -> None:
        """Make iteration continue from the position of `training`."""
        self._training = training

    def __iter__(self) -> Iterator[Any]:
        if self._training is None:
            raise RuntimeError("iterate over the loader inside `for epoch in run.epochs(n)`")
        training = self._training
        epoch = training.place.position.epoch
        indices = order(self.dataset_samples, seed=self.seed, epoch=epoch)
        fetcher = _Fetcher(self, indices.tolist(), training)
        while training.place.position.epoch == epoch and (
            training.place.position.samples < self.dataset_samples and not training.finished
        ):
            plan = training.plan
            batches = fetcher.batches()
            for step in training.split.steps(training.place.position.samples, self.dataset_samples):
                if training.begin_step(step, indices):
                    yield from self._step(training, step, batches, indices)
                if training.plan != plan or training.finished:
                    break  # prefetched batches belong to the previous plan

    def _step(
        self, training: Training, step: Step, batches: Iterator[Any], indices: NDArray[np.int64]
    ) -> Iterator[Any]:
        try:
            last = len(step.micro_batches) - 1
            for number, micro_batch in enumerate(step.micro_batches):
                batch = next(batches)
                training.gradients.begin(
                    len(micro_batch),
                    global_batch=len(step.batch),
                    first=number == 0,
                    last=number == last,
                    partial=step.partial,
                )
                self.within_step = True
                self.ends_epoch = number == last and step.batch.stop == self.dataset_samples
                yield batch
        except GeneratorExit:  # the script left its loop, perhaps after the optimizer step
            training.abandon_step(step, indices)
            raise
        finally:
            self.within_step = False
        training.end_step(step, indices)

    def fetcher(self, micro_batches: Any, generator: torch.Generator) -> Iterable[Any]:
        """Return an iterable of collated micro-batches. Each new iteration queries `micro_batches` again."""
        return DataLoader(
            self._dataset,
            batch_sampler=micro_batches,
            num_workers=self._num_workers,
            # Workers survive a change of plan, because starting them takes longer than the change.
            persistent_workers=self._num_workers > 0,
            collate_fn=self._collate_fn,
            pin_memory=self._device.type == "cuda",
            generator=generator,
        )

    def on_device(self, batch: Any) -> Any:
        """Return the batch on the model's device."""
        return batch if self._device.type == "cpu" else _to_device(batch, self._device)


class _Fetcher:
    """The remaining micro-batches of an epoch, from the present position on."""

    def __init__(self, loader: Loader, indices: list[int], training: Training) -> None:
        self._loader = loader
        self._indices = indices
        self._training = training
        # A separate generator: the script's random numbers must not depend on the number of restarts.
        generator = torch.Generator().manual_seed(loader.seed + training.place.position.epoch)
        self._source = loader.fetcher(self, generator)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield indices into the dataset, one list for each micro-batch."""
        training = self._training
        for step in training.split.steps(training.place.position.samples, len(self._indices)):
            for micro_batch in step.fetched:
                yield self._indices[micro_batch.start : micro_batch.stop]

    def batches(self) -> Iterator[Any]:
        """Return every micro-batch from the present position on, in the order of the steps."""
        return (self._loader.on_device(batch) for batch in self._source)


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
