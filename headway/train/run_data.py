"""The methods of a run that make its training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from headway.train.data.batching import Batching, Bounds
from headway.train.draws import Draws
from headway.train.gradients.device import memory_of
from headway.train.host.environment import Environment
from headway.train.loader import Loader
from headway.train.membership.team import Team
from headway.train.sampler import SampledData, Sampler
from headway.train.shard_reader import OpenShardBy
from headway.train.source import BatchSource
from headway.train.stream import Stream


class RunData:
    """The one source of training data of a run. `device` is that of this rank's model and batches."""

    def __init__(self, environment: Environment, device: torch.device, team: Team) -> None:
        self.device = device
        self._environment = environment
        self._team = team
        self._source: BatchSource | None = None

    def loader(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        *,
        global_batch: int,
        max_global_batch: int | None = None,
        max_local_batch: int | None = None,
        balance: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Loader:
        """Return the loader of training batches, which yields every sample once an epoch at any number of ranks.

        Each step takes the next `global_batch` samples of a shuffled order and divides them over the ranks.
        The last step of an epoch takes the rest. The script computes the mean loss of the samples that it
        receives.

        Args:
            dataset: has `len()` and returns a sample for an index. It must be the same on every rank. With
                `range(n)` and `collate_fn=list`, a batch has the indices for a script that reads the samples itself.
            global_batch: samples in an optimizer step, all ranks together. A job's `batch.global` overrides it.
            max_global_batch: upper limit of the global batch in a job with an adaptive `batch.policy`. The smaller of this
                and the job's `batch.max_global` applies.
            max_local_batch: most samples that one rank receives at a time. Beyond it, a rank accumulates gradients over
                several micro-batches. None: no limit. A job's `batch.max_local` overrides it.
            balance: give slower ranks, by measurement, fewer samples of each step.
            seed: seed of the shuffled order.
            num_workers: processes that prefetch samples; 0 fetches in this process.
            collate_fn: makes a batch of a list of samples, as for torch's `DataLoader`.

        Raises:
            TypeError: the dataset cannot be indexed.
            ValueError: a size is out of bounds, or the dataset is empty.
            RuntimeError: the run has a loader already.
        """
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise TypeError(
                "the dataset must have a length and give a sample for an index (a map-style dataset)"
            )
        if not len(dataset):
            raise ValueError("the dataset is empty; there is nothing to train on")
        batching = self._new_batching(
            global_batch, max_global_batch, max_local_batch, seed=seed, balance=balance, samples=len(dataset)
        )
        self._source = loader = Loader(
            dataset,
            batching=batching,
            seed=seed,
            device=self.device,
            num_workers=num_workers,
            collate_fn=collate_fn,
        )
        return loader

    def sampler(
        self,
        samples: int,
        *,
        global_batch: int,
        max_global_batch: int | None = None,
        max_local_batch: int | None = None,
        balance: bool = True,
        seed: int = 0,
    ) -> Sampler:
        """Return the `batch_sampler` for a `DataLoader` of the script's own, which yields every sample once an epoch.

            sampler = run.sampler(len(dataset), global_batch=64)
            data = sampler.through(DataLoader(dataset, batch_sampler=sampler, num_workers=4))
            for epoch in run.epochs(3):
                for batch in data:

        The samples of a step are those that `loader` would yield, with the same arguments. Workers draw random numbers that
        differ by rank and worker. After a change of members the `DataLoader` is iterated over anew.

        Raises:
            ValueError: a size is out of bounds, or there are no samples.
            RuntimeError: the run has training data already.
        """
        if samples < 1:
            raise ValueError(f"the number of samples is {samples}; it must be at least 1")
        batching = self._new_batching(
            global_batch, max_global_batch, max_local_batch, seed=seed, balance=balance, samples=samples
        )
        self._source = source = SampledData(samples, batching=batching, seed=seed, device=self.device)
        return Sampler(source)

    def indices(
        self,
        population: int,
        *,
        global_batch: int,
        max_global_batch: int | None = None,
        max_local_batch: int | None = None,
        balance: bool = True,
        seed: int = 0,
    ) -> Draws:
        """Return random indices below `population`, with replacement, for a script that reads the samples itself.

        Each batch is a tensor (samples,) with this rank's part of the step. The k-th index of training depends only on
        `seed` and k, so all ranks together draw the same sequence at any size. Train with `train_steps`. The other
        arguments are those of `loader`.

        Raises:
            ValueError: a size is out of bounds.
            RuntimeError: the run has training data already.
        """
        if population < 1:
            raise ValueError(f"the population is {population}; it must be at least 1")
        batching = self._new_batching(
            global_batch, max_global_batch, max_local_batch, seed=seed, balance=balance, samples=None
        )
        self._source = draws = Draws(population, batching=batching, seed=seed)
        return draws

    def stream(
        self,
        shards: Sequence[Any],
        open_shard: OpenShardBy,
        *,
        global_batch: int,
        max_global_batch: int | None = None,
        max_local_batch: int | None = None,
        balance: bool = True,
        shuffle: bool = True,
        seed: int = 0,
        same_order: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Stream:
        """Return batches of samples that are read one after the other from shards, pass after pass.

        Each rank reads shards of its own, and a shard continues on another rank when members change. Train with
        `train_steps`.

        Args:
            shards: names of the shards, such as paths, the same on every rank.
            open_shard: returns an iterable of the samples of a shard. If it has `state_dict` and `load_state_dict`, the
                shard continues by its state; otherwise by reading it again up to its position.
            global_batch: see `loader`.
            max_global_batch: see `loader`.
            max_local_batch: see `loader`.
            balance: see `loader`.
            shuffle: read the shards in a random order, anew in each pass.
            seed: seed of that order.
            same_order: a shard gives the same samples in the same order whenever it is opened, so each is used exactly once.
                False: a shard whose rank is lost continues at its last known state, and the samples since are repeated.
            collate_fn: makes a batch of a list of samples; None: as torch's `DataLoader` does.

        Raises:
            ValueError: a size is out of bounds, there are no shards, or several ranks take the same samples (`parallel.pp`, `parallel.tp`).
            RuntimeError: the run has training data already.
        """
        if not len(shards):
            raise ValueError("the stream has no shards; there is nothing to train on")
        if self._team.mesh.pipeline > 1:
            raise ValueError(
                "a stream gives every rank samples of its own, and the ranks of a pipeline or a tp group need the same ones; "
                "take run.loader(...) or run.indices(...)"
            )
        batching = self._new_batching(
            global_batch, max_global_batch, max_local_batch, seed=seed, balance=balance, samples=None
        )
        self._source = stream = Stream(
            shards,
            open_shard,
            batching=batching,
            seed=seed,
            device=self.device,
            shuffle=shuffle,
            same_order=same_order,
            collate_fn=collate_fn,
        )
        return stream

    def _new_batching(
        self,
        global_batch: int,
        max_global: int | None,
        max_local: int | None,
        *,
        seed: int,
        balance: bool,
        samples: int | None,
    ) -> Batching:
        """Return the batches of data of `samples` samples an epoch; None: without epochs."""
        if self._source is not None:
            raise RuntimeError("a run has one source of training data; evaluate with torch's DataLoader")
        sizes = {"global_batch": global_batch, "max_global_batch": max_global, "max_local_batch": max_local}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed}; it must be at least 0 and below 2**63")
        environment = self._environment
        own = environment.global_batch or global_batch
        bounds = Bounds(
            global_batch=min(own, samples or own),
            most_global=min(filter(None, [environment.most_global_batch, max_global, samples]))
            if environment.most_global_batch
            else None,
            start_global=environment.start_global_batch,
            start_effect=environment.batch_effect,
            max_local=environment.max_local_batch or max_local,
            rule=environment.lr_rule,
            balance=environment.balance if balance else None,
        )
        rank, mesh = self._team.data_rank, self._team.mesh
        memory, speeds = memory_of(self.device), environment.speeds[mesh.leaders]
        return Batching(bounds, rank, mesh.data, memory_bytes=memory, speeds=speeds)
