"""Checksums of datasets: what has changed is found, what proves nothing is left out, and the cost is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from headway.train.data.contents import MOST_BYTES, MOST_SAMPLES, contents_of, sampled_bytes

CHECKSUM = "checksum of samples of the dataset"


def tensors() -> tuple[Any, Callable[[], object]]:
    x = torch.arange(200.0).reshape(100, 2)
    return TensorDataset(x, x.sum(1)), lambda: x[60].mul_(2)


def subset() -> tuple[Any, Callable[[], object]]:
    whole, change = tensors()
    return Subset(whole, range(50, 70)), change


def joined() -> tuple[Any, Callable[[], object]]:
    whole, change = tensors()
    return ConcatDataset([TensorDataset(torch.zeros(5, 2), torch.zeros(5)), whole]), change


def pairs() -> tuple[Any, Callable[[], object]]:
    listed = [(np.full(3, number), number) for number in range(40)]
    return listed, lambda: listed[7][0].fill(0)


def texts() -> tuple[Any, Callable[[], object]]:
    listed = [f"line {number}" for number in range(40)]
    return listed, lambda: listed.__setitem__(3, "another")


def array() -> tuple[Any, Callable[[], object]]:
    made = np.arange(60).reshape(30, 2)
    return made, lambda: made.__setitem__(29, 0)


@pytest.mark.parametrize("make", [tensors, subset, joined, pairs, texts, array])
def test_one_changed_sample_of_a_small_dataset_changes_the_checksum(
    make: Callable[[], tuple[Any, Callable[[], object]]],
) -> None:
    dataset, change = make()
    before = contents_of(dataset, 7)
    assert contents_of(make()[0], 7) == before, "equal data, equal checksum"
    change()
    after = contents_of(dataset, 7)
    assert after[CHECKSUM] != before[CHECKSUM]
    assert len(after) == len(before) == 2


def test_appended_samples_change_the_length() -> None:
    listed = list(range(40))
    before = contents_of(listed, 7)
    listed.append(40)
    assert before["present length of the dataset"] == "40"
    assert contents_of(listed, 7)["present length of the dataset"] == "41"


class Counting(Dataset[torch.Tensor]):
    """A dataset that counts its accesses, keeps what it has made, and draws."""

    def __init__(self) -> None:
        self.read = 0
        self.kept = torch.zeros(30, 2)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> torch.Tensor:
        self.read += 1
        self.kept[number] = number
        return self.kept[number] + torch.rand(2)


class Augmented(TensorDataset):
    """A dataset of tensors that adds noise."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        raise AssertionError("no sample is read by the dataset's own code")


def test_dataset_that_counts_caches_and_draws_is_compared_by_its_length_alone() -> None:
    used = Counting()
    for number in range(30):
        used[number]
    assert contents_of(used, 7) == contents_of(Counting(), 7) == {"present length of the dataset": "30"}
    assert used.read == 30
    assert set(contents_of(Augmented(torch.ones(3, 2)), 7)) == {"present length of the dataset"}


def test_values_of_other_types_are_left_out() -> None:
    assert CHECKSUM not in contents_of([object() for _ in range(3)], 7)
    assert CHECKSUM not in contents_of([torch.ones(2, 2).to_sparse()], 7)
    assert CHECKSUM not in contents_of(np.array([object()], dtype=object), 7)


@pytest.mark.parametrize("rows", [3000, 900])
def test_large_dataset_is_sampled_within_the_bounds(rows: int) -> None:
    large = TensorDataset(torch.ones(rows, 4096))
    parts = list(sampled_bytes(large, 7))
    assert 0 < len(parts) <= MOST_SAMPLES
    assert sum(len(one) for one in parts) <= MOST_BYTES
    before = contents_of(large, 7)
    large.tensors[0][:] = 0.0
    assert contents_of(large, 7) != before
