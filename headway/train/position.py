"""Where training is in the data, and which samples a step takes. Pure.

The position is one integer per epoch: the samples committed in it. Every rank computes the same order of
the dataset from (seed, epoch), so the position alone says what is left, at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Position:
    """`samples` of epoch `epoch` are committed: the optimizer step that they were in was taken."""

    epoch: int = 0
    samples: int = 0

    def advance(self, samples: int) -> Position:
        """After a step over `samples` more."""
        return Position(self.epoch, self.samples + samples)

    def next_epoch(self) -> Position:
        """At the start of the epoch after this one."""
        return Position(self.epoch + 1, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part in one optimizer step. Ranges are places in the epoch's order.

    `batch` is what all ranks take together, `micro_batches` what this one does, one after another. An empty one is
    done with the first sample of the batch and no weight, since peers wait for this rank in the collectives.
    """

    batch: range
    micro_batches: tuple[range, ...]

    @property
    def share(self) -> range:
        """This rank's samples."""
        filled = [micro_batch for micro_batch in self.micro_batches if micro_batch]
        return range(filled[0].start, filled[-1].stop) if filled else range(0)

    @property
    def fetched(self) -> tuple[range, ...]:
        """The samples that the script gets for each micro-batch."""
        return tuple(micro_batch or self.batch[:1] for micro_batch in self.micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a global batch is divided: over the ranks, then into micro-batches of at most `max_local`.

    `local_batches` are the samples of each rank in a whole step, equal ones unless given. Their sum is `global_batch`.
    `in_step`: all ranks have as many micro-batches, since each of them has collectives.
    """

    global_batch: int
    rank: int
    world_size: int
    max_local: int | None
    local_batches: tuple[int, ...] = ()
    in_step: bool = False

    def step(self, start: int, dataset_samples: int) -> Step:
        """The step that begins with `start` samples of the epoch committed."""
        batch = range(start, min(start + self.global_batch, dataset_samples))
        shares = divide(batch, self.local_batches or (1,) * self.world_size)
        share = shares[self.rank]
        longest = max(map(len, shares)) if self.in_step else len(share)
        parts = 1 if self.max_local is None else max(1, -(-longest // self.max_local))
        return Step(batch, tuple(divide(share, (1,) * parts)))

    def steps(self, start: int, dataset_samples: int) -> Iterator[Step]:
        """Every step from `start` to the end of the epoch."""
        for begin in range(start, dataset_samples, self.global_batch):
            yield self.step(begin, dataset_samples)


def divide(whole: range, weights: Sequence[int]) -> list[range]:
    """`whole` in consecutive ranges, as long as their weights say, to less than one sample.

    What rounding leaves over goes to the largest remainders, to the first of equal ones.
    """
    stops = _stops(len(whole), tuple(weights))
    return [whole[start:stop] for start, stop in pairwise(stops)]


@lru_cache(maxsize=256)
def _stops(length: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Where the parts of `length` end, from 0 on. The same few are asked for at every step."""
    total = sum(weights)
    lengths = [length * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda part: -(length * weights[part] % total))
    for part in by_remainder[: length - sum(lengths)]:
        lengths[part] += 1
    return tuple(accumulate(lengths, initial=0))


def order(dataset_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of an epoch: a permutation of 0..n-1.

    The raw stream of a bit generator is the same for every version and platform of numpy, which
    `Generator.permutation` does not promise; ranks on different hosts must agree.
    """
    keys = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(dataset_samples)
    return np.argsort(np.asarray(keys, dtype=np.uint64), kind="stable").astype(np.int64, copy=False)
