"""The seeds of the loader's workers, and what scripts read of a `DataLoader`."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

from headway.train.loader import seed_of
from tests.unit.headway.train.test_session import ADAPTIVE, make_run, numbers, prepared


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


def test_loader_read_as_a_dataloader_has_its_dataset_and_sizes() -> None:
    run, dataset = make_run(), numbers(30)
    loader = run.loader(dataset, global_batch=4)
    prepared(run)
    model = nn.Linear(1, 1)
    schedule = OneCycleLR(torch.optim.SGD(model.parameters()), 0.1, epochs=2, steps_per_epoch=len(loader))
    assert schedule.total_steps == 16
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 0, False)
    assert len(loader.sampler) == 30
    for epoch in run.epochs(2):
        loader.sampler.set_epoch(epoch)
        assert len(next(iter(loader))[0]) == 4
        assert len(list(loader)) == len(loader) == 8


def test_loader_shown_by_tqdm_has_the_length_of_the_epoch() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    run = make_run()
    prepared(run)
    bar = tqdm(run.loader(numbers(30), global_batch=4), disable=None, file=io.StringIO())
    assert bar.total == 8
    assert sum(len(batch) for _ in run.epochs(1) for (batch,) in bar) == 30


def test_length_of_an_adaptive_loader_is_by_the_own_batch_before_the_loop_and_by_the_present_one_in_it() -> (
    None
):
    run = make_run(**ADAPTIVE)
    loader = run.loader(numbers(30), global_batch=4)
    prepared(run)
    assert (len(loader), loader.batch_size) == (8, 4)
    next(run.epochs(1))
    assert (len(loader), loader.batch_size) == (2, 16)
