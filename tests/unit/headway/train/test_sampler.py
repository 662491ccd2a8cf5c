"""A script's own DataLoader: the same samples as from the run's loader, and advice where it is misused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.unit.headway.train.test_session import make_run, numbers, prepared

SAMPLES = 22


def trained(data: Any, run: Any) -> list[list[float]]:
    return [batch.flatten().tolist() for _ in run.epochs(2) for (batch,) in data]


def test_samples_are_those_of_the_loader_each_once_an_epoch() -> None:
    sizes = {"global_batch": 8, "max_local_batch": 3, "seed": 5}
    run, other = make_run(), make_run()
    prepared(run)
    prepared(other)
    sampler = run.sampler(SAMPLES, **sizes)
    data = sampler.through(DataLoader(numbers(SAMPLES), batch_sampler=sampler))
    assert (len(sampler), len(data)) == (3, 3)
    batches = trained(data, run)
    assert batches == trained(other.loader(numbers(SAMPLES), **sizes), other)
    assert [len(batch) for batch in batches] == [3, 3, 2, 3, 3, 2, 3, 3] * 2
    assert sorted(number for batch in batches[:8] for number in batch) == list(range(SAMPLES))


def test_random_numbers_of_the_script_do_not_depend_on_the_data() -> None:
    run = make_run()
    prepared(run)
    sampler = run.sampler(SAMPLES, global_batch=8)
    data = sampler.through(DataLoader(numbers(SAMPLES), batch_sampler=sampler))
    torch.manual_seed(3)
    trained(data, run)
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(()))


def test_misuse_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="the number of samples is 0"):
        make_run().sampler(0, global_batch=8)
    run = make_run()
    prepared(run)
    sampler = run.sampler(SAMPLES, global_batch=8)
    with pytest.raises(ValueError, match="batch_sampler=sampler"):
        sampler.through(DataLoader(numbers(SAMPLES), batch_size=8))
    with pytest.raises(ValueError, match="dataset has 8 samples, and the sampler 22"):
        sampler.through(DataLoader(numbers(8), batch_sampler=sampler))
    own = DataLoader(numbers(SAMPLES), batch_sampler=sampler)
    with pytest.raises(RuntimeError, match=r"sampler\.through"):
        next(iter(own))
    sampler.through(own)
    epochs = run.epochs(1)
    next(epochs)
    with pytest.raises(RuntimeError, match=r"sampler\.through"):
        next(iter(own))
