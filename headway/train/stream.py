"""Training data read one after the other from shards, such as files, that ranks divide among themselves."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from headway.train.data.batching import Batching
from headway.train.data.ledger import Ledger
from headway.train.shard_reader import OpenShardBy
from headway.train.source import ENDLESS, BatchSource
from headway.train.streaming import StreamReading


class Stream(BatchSource):
    """The samples of shards, pass after pass. Made by `Run.stream`.

    Each rank reads shards of its own. All ranks know where each of them is, so shards continue on another rank.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        open_shard: OpenShardBy,
        *,
        batching: Batching,
        seed: int,
        device: torch.device,
        shuffle: bool,
        same_order: bool,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        super().__init__(
            batching=batching,
            seed=seed,
            device=device,
            signature=zlib.crc32(repr([str(shard) for shard in shards]).encode()),
            epoch_samples=None,
        )
        self.reading: StreamReading = StreamReading(
            shards, open_shard, seed=seed if shuffle else None, same_order=same_order
        )
        self._collate = collate_fn or default_collate

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: there is one epoch."""

    def batches(self) -> Iterator[Any]:
        """Yield every micro-batch from the present position on. The samples of a step are read before it begins."""
        assert self._training is not None
        for step in self._training.split.steps(self._training.place.position.samples, ENDLESS):
            for micro_batch in step.micro_batches:
                yield self._collate(self.reading.samples_of(micro_batch))

    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of the samples at these positions in the step."""
        return self.reading.ledger_of(positions)
