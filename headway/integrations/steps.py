"""Steps of a fixed global batch for frameworks that give every rank as many samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from headway.train.position import order


def divide_batch(global_batch: int, world_size: int, most_local: int | None = None) -> tuple[int, int]:
    """The samples that a rank takes in one pass, and the passes of a step. The first are as many as `most_local` lets them.

    Raises:
        ValueError: the ranks cannot have equal parts of the batch.
    """
    share, rest = divmod(global_batch, world_size)
    if rest:
        sizes = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
        raise ValueError(
            f"a global batch of {global_batch} samples has no equal parts for {world_size} ranks, and the Trainer gives "
            f"all as many: write `elastic: {{sizes: {sizes[:12]}}}` in the job file, or take another global batch"
        )
    local = max(size for size in range(1, min(share, most_local or share) + 1) if share % size == 0)
    return local, share // local


class StepBatches(Sampler[list[int]]):
    """This rank's passes of every step of an epoch, the same samples for a step at any number of ranks.

    Step k of an epoch takes places k * global batch and on of a permutation seeded by (seed, epoch), as `Run.loader` does;
    what is left in the end, less than a global batch, is left out. `epoch` is set before each one.
    """

    def __init__(
        self, samples: int, *, local: int, passes: int, rank: int, world_size: int, seed: int
    ) -> None:
        self.epoch = 0
        self._samples = samples
        self._local, self._passes = local, passes
        self._rank, self._world_size = rank, world_size
        self._seed = seed

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self._local * self._passes * self._world_size

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return self._samples // self.global_batch

    def __len__(self) -> int:
        return self.steps * self._passes

    def __iter__(self) -> Iterator[list[int]]:
        indices = order(self._samples, seed=self._seed, epoch=self.epoch).tolist()
        for number in range(len(self)):
            start = (number * self._world_size + self._rank) * self._local
            yield indices[start : start + self._local]
