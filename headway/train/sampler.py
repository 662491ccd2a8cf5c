"""The samples of a script's own `DataLoader`: each once an epoch, divided anew when members change."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from headway.train.data.batching import Batching
from headway.train.data.ledger import Ledger
from headway.train.data.position import order
from headway.train.host.workers import end_with_rank
from headway.train.loader import Remaining, seed_of
from headway.train.source import BatchSource


class Sampler:
    """The `batch_sampler` of a script's own `DataLoader`. Made by `Run.sampler`.

    A `DataLoader` asks for indices long before the script trains on them. Therefore the script iterates over the result of
    `through`, which counts samples as each step is committed, never as they are asked for.
    """

    def __init__(self, source: SampledData) -> None:
        self._source = source

    def through(self, data: DataLoader[Any]) -> SampledData:
        """Return the batches of this `DataLoader`, for the training loop. Its generator is replaced.

        Raises:
            ValueError: the `DataLoader` has another `batch_sampler`, or its dataset another length.
        """
        if data.batch_sampler is not self:
            raise ValueError(
                "the DataLoader takes its samples from elsewhere: make it with batch_sampler=sampler, without batch_size, "
                "shuffle and sampler"
            )
        if isinstance(data.dataset, Sized) and len(data.dataset) != self._source.epoch_samples:
            raise ValueError(
                f"the dataset has {len(data.dataset)} samples, and the sampler {self._source.epoch_samples}: "
                "make it with run.sampler(len(dataset), ...)"
            )
        self._source.data = data
        return self._source

    def __len__(self) -> int:
        """Return the optimizer steps in an epoch with the job's own batch."""
        return self._source.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        return self._source.remaining()


class SampledData(BatchSource):
    """The batches of a `DataLoader` whose `batch_sampler` is a `Sampler`."""

    def __init__(self, samples: int, *, batching: Batching, seed: int, device: torch.device) -> None:
        super().__init__(
            batching=batching, seed=seed, device=device, signature=samples, epoch_samples=samples
        )
        self.data: DataLoader[Any] | None = None
        """The `DataLoader` that `Sampler.through` got."""
        self._samples = samples
        self._begins = False
        self._indices: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch with the job's own batch."""
        return -(-self._samples // self.batching.bounds.global_batch)

    def __len__(self) -> int:
        """Return `steps_per_epoch`. With accumulation the loop's body runs more often."""
        return self.steps_per_epoch

    def start_epoch(self, epoch: int) -> None:
        """Shuffle the samples for this epoch, and let the workers of each rank draw other random numbers."""
        if self.data is None:
            raise RuntimeError(
                "the DataLoader of run.sampler(...) is not known: iterate over sampler.through(DataLoader(...))"
            )
        assert self._training is not None
        self._indices = order(self._samples, seed=self.seed, epoch=epoch)
        self.data.generator = torch.Generator().manual_seed(
            seed_of(self.seed, epoch, self._training.split.rank, self._training.place.position.samples)
        )

    def batches(self) -> Iterator[Any]:
        """Return every micro-batch from the present position on, in the order of the steps.

        What workers fetched ahead for an earlier iteration is discarded.
        """
        assert self.data is not None
        end_with_rank(self.data)
        self._begins = True
        try:
            return iter(self.data)  # which asks for `remaining`
        finally:
            self._begins = False

    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of the indices at these positions in the epoch's order."""
        return Ledger().add(self._indices[positions.start : positions.stop])

    def remaining(self) -> Iterator[list[int]]:
        """Return the indices of the remaining micro-batches.

        Raises:
            RuntimeError: the script iterates over the `DataLoader` itself.
        """
        if self._training is None or not self._begins:
            raise RuntimeError(
                "the DataLoader runs ahead of training: iterate over the result of sampler.through(DataLoader(...)) inside "
                "`run.epochs(n)` or `run.train_steps(n)`"
            )
        return iter(Remaining(self._indices.tolist(), self._training))
