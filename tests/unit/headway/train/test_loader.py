"""The seeds of the loader's workers."""

from __future__ import annotations

import itertools

import torch
from torch.utils.data import Dataset

from headway.train.loader import seed_of
from tests.unit.headway.train.test_session import make_run, prepared


class Drawn(Dataset[torch.Tensor]):
    """Samples that are random numbers of the process that reads them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


def drawn(seed: int) -> list[float]:
    """Return the numbers of two epochs, each left after its first batch if it has more."""
    run = make_run()
    prepared(run)
    loader = run.loader(Drawn(), global_batch=4, num_workers=1, seed=seed)
    return [sample for _ in run.epochs(2) for batch in loader for sample in batch.flatten().tolist()]


def test_workers_draw_anew_in_each_epoch_and_with_each_seed() -> None:
    numbers = [*drawn(0), *drawn(1)]  # with a sum, epoch 1 of seed 0 would be epoch 0 of seed 1
    assert len(set(numbers)) == len(numbers) == 32
    assert drawn(0) == numbers[:16]


def test_seed_of_other_numbers_or_another_order_is_another() -> None:
    seeds = [seed_of(*numbers) for numbers in itertools.product(range(4), repeat=4)]
    assert len(set(seeds)) == len(seeds) == 256
    assert seed_of(-1, 2**80) == seed_of(-1, 2**80)
    assert all(0 <= seed < 2**63 for seed in seeds)
