"""Descriptions of what ranks must have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from headway.train.state.likeness import describe_objects, differences, digest_of, groups_of


def made(width: int = 3) -> list[Any]:
    model = nn.Linear(width, 1)
    return [model, torch.optim.SGD(model.parameters(), lr=0.1)]


def test_equal_objects_have_one_digest_and_no_differences() -> None:
    first, second = describe_objects(made(), trainable=True), describe_objects(made(), trainable=True)
    assert digest_of(first) == digest_of(second)
    assert differences(first, second, where=("saved", "built")) == ""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (made(4), "object 0, weight: (1, 3) torch.float32 saved, (1, 4) torch.float32 built"),
        (made()[:1], "the class of object 1 of prepare(): SGD saved, none built"),
    ],
)
def test_difference_is_named_with_both_values(other: list[Any], said: str) -> None:
    found = differences(describe_objects(made()), describe_objects(other), where=("saved", "built"))
    assert found.startswith(said)


@pytest.mark.parametrize(("sizes", "text"), [(True, "2 (of 2, 1 parameters)"), (False, "2")])
def test_group_that_was_added_counts_with_and_without_sizes(sizes: bool, text: str) -> None:
    objects = made()
    objects[1].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert groups_of(objects, sizes=sizes) == {"parameter groups of SGD (object 1)": text}


def test_frozen_parameter_differs_only_where_it_is_asked_for() -> None:
    frozen = made()
    frozen[0].bias.requires_grad_(False)
    assert digest_of(describe_objects(frozen)) == digest_of(describe_objects(made()))
    assert digest_of(describe_objects(frozen, trainable=True)) != digest_of(
        describe_objects(made(), trainable=True)
    )
