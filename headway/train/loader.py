"""The loader that a training loop iterates over: one micro-batch at a time, one commit per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from headway.train.gradients import GradientWeights
from headway.train.ledger import Ledger, ledger_of
from headway.train.position import MicroBatch, Position, permutation, plan_epoch

Sample = TypeVar("Sample")


class Steps(Protocol):
    """What the loader tells the run."""

    @property
    def position(self) -> Position:
        """What is committed."""
        ...

    @property
    def weights(self) -> GradientWeights:
        """The weights of the pass at hand."""
        ...

    def begin_step(self) -> None:
        """A step begins."""
        ...

    def commit_step(
        self, samples: int, mine: Ledger, global_batch: int, local_batch: int, passes: int
    ) -> None:
        """The optimizer has stepped. Does not return when the run leaves here."""
        ...

    def abandon_step(self) -> None:
        """The script left the loop in the middle of a step."""
        ...

    def end_epoch(self) -> None:
        """Every sample of the epoch is committed."""
        ...


class ElasticLoader(Generic[Sample]):
    """Iterating trains the rest of the current epoch. Batches come on the run's device.

    A step counts as done when the loop asks for the next batch: by then the script has called
    `optimizer.step()`. With `max_local`, several batches make one step, and `step()` acts on the last.
    """

    def __init__(
        self,
        dataset: Sequence[Sample] | Dataset[Sample],
        *,
        steps: Steps,
        rank: int,
        world_size: int,
        device: torch.device,
        global_batch: int,
        max_global_batch: int | None,
        max_local: int | None,
        seed: int,
        collate: Callable[[list[Sample]], Any] | None,
        num_workers: int,
    ) -> None:
        if len(dataset) == 0:  # type: ignore[arg-type]
            raise ValueError("the dataset is empty; there is nothing to train on.")
        if global_batch < 1:
            raise ValueError(f"global_batch must be at least 1, not {global_batch}.")
        if max_local is not None and max_local < 1:
            raise ValueError(f"max_local_batch must be at least 1, not {max_local}.")
        if max_global_batch is not None and max_global_batch < global_batch:
            raise ValueError(f"max_global_batch ({max_global_batch}) is below global_batch ({global_batch}).")
        self.dataset = dataset
        self.global_batch = global_batch
        self._steps = steps
        self._rank, self._world_size, self._device = rank, world_size, device
        self._max_local, self._seed = max_local, seed
        self._collate: Callable[[list[Sample]], Any] = collate or default_collate
        self._num_workers = num_workers

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return math.ceil(len(self.dataset) / self.global_batch)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch."""
        mine, passes, local_batch = Ledger(), 0, 0
        in_step = False
        try:
            for micro, batch in self._batches():
                is_first = passes == 0
                if is_first:
                    in_step = True
                    self._steps.begin_step()
                self._steps.weights.start_pass(
                    weight=micro.weight, scale=micro.scale, is_first=is_first, is_last=micro.is_last
                )
                yield _to_device(batch, self._device)
                if micro.scale > 0:
                    mine = mine.plus(ledger_of(micro.indices))
                local_batch, passes = local_batch + len(micro.indices), passes + 1
                if micro.is_last:
                    in_step = False
                    self._steps.commit_step(micro.step_samples, mine, self.global_batch, local_batch, passes)
                    mine, passes, local_batch = Ledger(), 0, 0
        finally:
            if in_step:
                self._steps.abandon_step()
        self._steps.end_epoch()

    def _batches(self) -> Iterator[tuple[MicroBatch, Any]]:
        position = self._steps.position
        order = permutation(len(self.dataset), seed=self._seed, epoch=position.epoch)  # type: ignore[arg-type]

        def plan() -> Iterator[MicroBatch]:
            return plan_epoch(
                order,
                start=position.samples,
                global_batch=self.global_batch,
                max_local=self._max_local,
                rank=self._rank,
                world_size=self._world_size,
            )

        if self._num_workers == 0:
            return ((micro, self._fetch(micro)) for micro in plan())
        workers = DataLoader(
            cast("Dataset[Sample]", self.dataset),
            batch_sampler=[micro.indices.tolist() for micro in plan()],
            num_workers=self._num_workers,
            collate_fn=self._collate,
        )
        return zip(plan(), workers, strict=True)

    def _fetch(self, micro: MicroBatch) -> Any:
        if isinstance(self.dataset, TensorDataset) and self._collate is default_collate:
            indices = torch.from_numpy(micro.indices)
            return [tensor[indices] for tensor in self.dataset.tensors]
        dataset = cast("Sequence[Sample]", self.dataset)
        return self._collate([dataset[int(index)] for index in micro.indices])


def _to_device(batch: Any, device: torch.device) -> Any:
    """Tensors of a batch on the device; lists, tuples and dicts are looked into."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(one, device) for one in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to_device(one, device) for one in batch)
    return batch
