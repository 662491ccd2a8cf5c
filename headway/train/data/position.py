"""The data position of training, and the samples of each step. The module does no I/O.

The position is one integer per epoch: the samples committed in it. Every rank computes the same order of the
dataset from (seed, epoch). Therefore the position alone determines the remaining samples, at any number of
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from headway.train.gradients.depths import Depths, PartialStep, levels


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the data: the first `samples` samples of epoch `epoch` are committed by optimizer steps."""

    epoch: int = 0
    samples: int = 0

    def advance(self, samples: int) -> Position:
        """Return the position after a step over `samples` more samples."""
        return Position(self.epoch, self.samples + samples)

    def next_epoch(self) -> Position:
        """Return the position at the start of the next epoch."""
        return Position(self.epoch + 1, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part in one optimizer step. Ranges are positions in the epoch's order.

    `batch` is the range of all ranks together. `micro_batches` are this rank's ranges, in order. An empty
    micro-batch runs with the first sample of the batch and no weight, because peers wait for this rank in the
    collectives. `partial` has the depths of the ranks; None: each back-propagates through all layers.
    """

    batch: range
    micro_batches: tuple[range, ...]
    partial: PartialStep | None = None

    @property
    def share(self) -> range:
        """Range of this rank's samples in the epoch's order."""
        filled = [micro_batch for micro_batch in self.micro_batches if micro_batch]
        return range(filled[0].start, filled[-1].stop) if filled else range(0)

    @property
    def fetched(self) -> tuple[range, ...]:
        """The samples that the script receives for each micro-batch."""
        return tuple(micro_batch or self.batch[:1] for micro_batch in self.micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of a global batch over the ranks, then into micro-batches of at most `max_local`.

    `local_batches` are the samples of each rank in a whole step, equal by default. Their sum is
    `global_batch`. `in_step`: all ranks have the same number of micro-batches, because each of them has
    collectives.
    """

    global_batch: int
    rank: int
    world_size: int
    max_local: int | None
    local_batches: tuple[int, ...] = ()
    in_step: bool = False
    depths: Depths | None = None
    """Costs of the levels of partial back-propagation; None without it."""

    def step(self, start: int, dataset_samples: int) -> Step:
        """Return the step that begins with `start` samples of the epoch committed.

        A step that is too short to give every rank a sample is never partial: the rank at full depth needs one.
        """
        batch = range(start, min(start + self.global_batch, dataset_samples))
        local_batches = self.local_batches or (1,) * self.world_size
        partial = None
        shares = divide(batch, local_batches)
        if self.depths is not None:
            at = levels(start // self.global_batch, self.world_size)
            unequal = divide(batch, self.depths.weights(local_batches, at))
            if all(unequal):
                shares, partial = unequal, PartialStep(at, tuple(map(len, unequal)))
        share = shares[self.rank]
        longest = max(map(len, shares)) if self.in_step else len(share)
        parts = 1 if self.max_local is None else max(1, -(-longest // self.max_local))
        return Step(batch, tuple(divide(share, (1,) * parts)), partial)

    def steps(self, start: int, dataset_samples: int) -> Iterator[Step]:
        """Yield every step from `start` to the end of the epoch."""
        for begin in range(start, dataset_samples, self.global_batch):
            yield self.step(begin, dataset_samples)


def divide(whole: range, weights: Sequence[int]) -> list[range]:
    """Divide `whole` into consecutive ranges in proportion to the weights, each exact to less than one sample.

    Samples left over by rounding down go to the ranges with the largest remainders; the first of equal ones
    wins.
    """
    stops = _stops(len(whole), tuple(weights))
    return [whole[start:stop] for start, stop in pairwise(stops)]


@lru_cache(maxsize=256)
def _stops(length: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return 0 and the end of each part of `length`. Cached, because steps use few different arguments."""
    total = sum(weights)
    lengths = [length * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda part: -(length * weights[part] % total))
    for part in by_remainder[: length - sum(lengths)]:
        lengths[part] += 1
    return tuple(accumulate(lengths, initial=0))


def order(dataset_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of an epoch: a permutation of 0..n-1.

    The raw stream of a bit generator is the same for every version and platform of numpy, which
    `Generator.permutation` does not promise. Ranks on different hosts must agree.
    """
    keys = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(dataset_samples)
    return np.argsort(np.asarray(keys, dtype=np.uint64), kind="stable").astype(np.int64, copy=False)
