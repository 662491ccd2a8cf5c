"""Steps of a fixed global batch for frameworks that give all ranks equally many samples. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from headway.train.data.position import order


def divide_batch(global_batch: int, world_size: int, most_local: int | None = None) -> tuple[int, int]:
    """Return the samples of a rank in one pass, as many as `most_local` allows, and the passes of a step.

    Raises:
        ValueError: the batch cannot be divided equally over the ranks.
    """
    share, rest = divmod(global_batch, world_size)
    if rest:
        sizes = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
        raise ValueError(
            f"a global batch of {global_batch} samples cannot be divided equally over {world_size} ranks, as the Trainer "
            f"requires: write `elastic: {{sizes: {sizes[:12]}}}` in the job file, or take another global batch"
        )
    local = max(size for size in range(1, min(share, most_local or share) + 1) if share % size == 0)
    return local, share // local


class StepBatches(Sampler[list[int]]):
    """This rank's passes of every step of an epoch; a step has the same samples at any number of ranks.

    Step k of an epoch takes `global_batch` samples from position k * `global_batch` of a permutation seeded
    by (seed, epoch), as `Run.loader` does. The rest at the end, less than a global batch, is left out.
    `epoch` is set before each epoch.
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
        """Number of samples in one step."""
        return self._local * self._passes * self._world_size

    @property
    def steps(self) -> int:
        """Number of steps in one epoch."""
        return self._samples // self.global_batch

    def __len__(self) -> int:
        return self.steps * self._passes

    def __iter__(self) -> Iterator[list[int]]:
        indices = order(self._samples, seed=self._seed, epoch=self.epoch).tolist()
        for number in range(len(self)):
            start = (number * self._world_size + self._rank) * self._local
            yield indices[start : start + self._local]
