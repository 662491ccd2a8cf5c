"""The training loader: batches of a dataset that can be indexed, each sample once an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from headway.train.data.batching import Batching
from headway.train.data.ledger import Ledger
from headway.train.data.position import order
from headway.train.host.workers import end_with_rank
from headway.train.source import BatchSource
from headway.train.training import Training


class Loader(BatchSource):
    """The samples of a dataset in an order that is shuffled anew in each epoch. Made by `Run.loader`.

    It has what scripts read of torch's `DataLoader`: its length, `dataset`, `batch_size` and `sampler`, all of them of
    the whole step rather than of one rank, so that they do not depend on the number of ranks.
    """

    drop_last = False
    """The last step of an epoch takes the rest of its samples."""

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        *,
        batching: Batching,
        seed: int,
        device: torch.device,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        assert isinstance(dataset, Sized)
        self.dataset_samples = len(dataset)
        super().__init__(
            batching=batching,
            seed=seed,
            device=device,
            signature=self.dataset_samples,
            epoch_samples=self.dataset_samples,
        )
        self.dataset: Any = dataset  # torch takes a sequence, too, but its annotation does not say so
        """The dataset that `Run.loader` got."""
        self.sampler = EpochSampler(self.dataset_samples)
        """A stand-in for the sampler of a `DataLoader`."""
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self._indices: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._fetched: DataLoader[Any] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch with the job's own batch, in which learning-rate schedules count.

        With accumulation the loop's body runs more often.
        """
        return -(-self.dataset_samples // self.batching.bounds.global_batch)

    @property
    def batch_size(self) -> int:
        """Samples in an optimizer step, all ranks together: at present, or the job's own before the training loop.

        Learning-rate schedules, which scripts make before the loop, count in steps of the job's own batch.
        """
        batching = self.batching
        return batching.bounds.global_batch if self._training is None else batching.split.global_batch

    def __len__(self) -> int:
        """Return the optimizer steps of an epoch at `batch_size`. With accumulation the loop's body runs more often."""
        return (self.dataset_samples + self.batch_size - 1) // self.batch_size

    def start_epoch(self, epoch: int) -> None:
        """Shuffle the dataset for this epoch."""
        assert self._training is not None
        self._indices = order(self.dataset_samples, seed=self.seed, epoch=epoch)
        self._fetched = DataLoader(
            self.dataset,
            batch_sampler=Remaining(self._indices.tolist(), self._training),
            num_workers=self.num_workers,
            # Workers survive a change of plan, because starting them takes longer than the change.
            persistent_workers=self.num_workers > 0,
            collate_fn=self.collate_fn,
            pin_memory=self._device.type == "cuda",
            # A separate generator: the script's random numbers must not depend on the number of restarts.
            generator=torch.Generator().manual_seed(
                # Ranks with the same samples draw the same. A restart within the epoch draws anew.
                seed_of(self.seed, epoch, self._training.split.rank, self._training.place.position.samples)
            ),
        )

    def batches(self) -> Iterator[Any]:
        """Return every micro-batch from the present position on, in the order of the steps."""
        assert self._fetched is not None
        end_with_rank(self._fetched)
        return iter(self._fetched)

    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of the indices at these positions in the epoch's order."""
        return Ledger().add(self._indices[positions.start : positions.stop])


class EpochSampler:
    """The sampler that a script expects in its loader. The run knows the epoch, so nobody has to set it."""

    def __init__(self, dataset_samples: int) -> None:
        self._dataset_samples = dataset_samples

    def __len__(self) -> int:
        """Return the samples of an epoch, all ranks together."""
        return self._dataset_samples

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: `Run.epochs` sets the epoch."""


def seed_of(*numbers: int) -> int:
    """Return a seed below 2**63 that depends on each number and on their order."""
    mixed = np.random.SeedSequence([number % 2**64 for number in numbers])
    return int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))


class Remaining:
    """The indices into the dataset of the remaining micro-batches, anew in each iteration."""

    def __init__(self, indices: list[int], training: Training) -> None:
        self._indices = indices
        self._training = training

    def __iter__(self) -> Iterator[list[int]]:
        training = self._training
        for step in training.split.steps(training.place.position.samples, len(self._indices)):
            for micro_batch in step.fetched:
                yield self._indices[micro_batch.start : micro_batch.stop]
