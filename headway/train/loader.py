"""The batches of the steps that are left, and the bookkeeping around each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from headway.train.gradients import Gradients
from headway.train.position import Split, order
from headway.train.training import Training


class Loader:
    """This rank's part of the steps of the current epoch. Made by `Run.loader`.

    Yields the samples of one micro-batch, collated and on the run's device. What the loop's body did for a
    step is committed when the loop comes back for more: between two steps training may checkpoint, or stop.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        split: Split,
        seed: int,
        device: torch.device,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        assert isinstance(dataset, Sized)
        self.dataset_samples = len(dataset)
        self.split = split
        self.seed = seed
        self._dataset = dataset
        self._device = device
        self._num_workers = num_workers
        self._collate_fn = collate_fn
        self._training: Training | None = None
        self._gradients: Gradients | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch. With accumulation the loop's body runs more often."""
        return -(-self.dataset_samples // self.split.global_batch)

    def attach(self, training: Training, gradients: Gradients) -> None:
        """Iterating goes on from the position of `training`."""
        self._training, self._gradients = training, gradients

    def __iter__(self) -> Iterator[Any]:
        if self._training is None or self._gradients is None:
            raise RuntimeError("iterate over the loader inside `for epoch in run.epochs(n)`")
        training, gradients = self._training, self._gradients
        position = training.place.position
        indices = order(self.dataset_samples, seed=self.seed, epoch=position.epoch)
        batches = self._fetch(indices.tolist(), position.samples, position.epoch)
        for step in self.split.steps(position.samples, self.dataset_samples):
            training.begin_step()
            try:
                last = len(step.micro_batches) - 1
                for number, micro_batch in enumerate(step.micro_batches):
                    batch = next(batches)
                    gradients.begin(
                        len(micro_batch) if step.trains else 0,
                        global_batch=len(step.batch),
                        first=number == 0,
                        last=number == last,
                    )
                    yield batch
            except GeneratorExit:  # the script left its loop; it may have taken the step before
                gradients.abandon()
                if gradients.stepped:
                    training.commit(step, indices[step.share.start : step.share.stop])
                raise
            training.commit(step, indices[step.share.start : step.share.stop])
            training.end_step()

    def _fetch(self, indices: list[int], start: int, epoch: int) -> Iterator[Any]:
        """Every micro-batch from `start` on, in the order of the steps."""
        micro_batches = [
            indices[micro_batch.start : micro_batch.stop]
            for step in self.split.steps(start, self.dataset_samples)
            for micro_batch in step.micro_batches
        ]
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=micro_batches,
            num_workers=self._num_workers,
            collate_fn=self._collate_fn,
            pin_memory=self._device.type == "cuda",
            # Of its own: the script's random numbers must not depend on how often it was restarted.
            generator=torch.Generator().manual_seed(self.seed + epoch),
        )
        if self._device.type == "cpu":
            return iter(loader)
        return (_to_device(batch, self._device) for batch in loader)


def _to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
