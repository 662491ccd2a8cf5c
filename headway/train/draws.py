"""Random indices for loops that read their samples themselves, such as windows of a memory-mapped file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from headway.train.data.batching import Batching
from headway.train.data.ledger import Ledger
from headway.train.source import ENDLESS, BatchSource


class Draws(BatchSource):
    """Indices below `population`, drawn with replacement. Made by `Run.indices`.

    The k-th index of training depends only on the seed and k, so the sequence of all ranks together is the same at any
    size and batch. The ledger counts the numbers k, so that the audit proves that each was used once.
    """

    def __init__(self, population: int, *, batching: Batching, seed: int) -> None:
        super().__init__(
            batching=batching,
            seed=seed,
            device=torch.device("cpu"),  # a script reads its samples on the host
            signature=population,
            epoch_samples=None,
        )
        self._population = population

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: there is one epoch."""

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield the indices of every micro-batch from the present position on."""
        assert self._training is not None
        for step in self._training.split.steps(self._training.place.position.samples, ENDLESS):
            for micro_batch in step.fetched:
                yield torch.from_numpy(draw(self._population, micro_batch, seed=self.seed))

    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of the numbers of the draws."""
        return Ledger().add(np.arange(positions.start, positions.stop, dtype=np.int64))


def draw(population: int, positions: range, *, seed: int) -> NDArray[np.int64]:
    """Return the draws at these positions of the sequence of this seed, each below `population`.

    The raw stream of a bit generator is the same for every version and platform of numpy, and can be entered anywhere.
    """
    generator = np.random.PCG64(np.random.SeedSequence(seed)).advance(positions.start)
    raw = np.asarray(generator.random_raw(len(positions)), dtype=np.uint64)
    return (raw % np.uint64(population)).astype(np.int64)
