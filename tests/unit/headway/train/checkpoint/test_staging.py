from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headway.train.checkpoint.staging import UnreadableValue, join, split, tensors_of

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
tensors = st.lists(st.integers(-9, 9), max_size=3).map(torch.tensor)
keys = st.text("ab.0", max_size=3) | st.integers(0, 2)
states = st.recursive(
    plain | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(max_examples=40)
@given(state=states)
def test_what_is_split_can_be_joined(state: Any) -> None:
    assert same(join(*split(state)), state)


def test_tensors_have_names_that_people_can_read() -> None:
    _, named = split({"model": nn.Linear(2, 1).state_dict(), "more": [torch.ones(1)]})
    assert list(named) == ["model.weight", "model.bias", "more.0"]


def test_what_torch_keeps_beside_a_state_is_kept() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    assert join(*split({"model": state}))["model"]._metadata == state._metadata  # type: ignore[attr-defined]


def test_what_holds_no_tensor_may_be_any_plain_value() -> None:
    state = {"milestones": Counter([3, 5]), "size": torch.Size([2]), "type": torch.float16}
    assert join(*split(state)) == state


@pytest.mark.parametrize(
    "scalar", [np.float64(0.1), np.float32(0.1), np.int64(-3), np.uint8(3), np.bool_(True), np.str_("cosine")]
)
def test_a_scalar_of_numpy_is_joined_as_an_equal_number_of_python(scalar: np.generic) -> None:
    groups = [
        {"lr": scalar, "betas": (scalar, 0.9)},
        {"lr": 0.1, scalar: torch.ones(1), "nested": [[scalar]]},
    ]
    joined = join(*split({"param_groups": groups, "best": OrderedDict(metric=scalar)}))
    assert joined == {"param_groups": groups, "best": {"metric": scalar}}
    for one in (
        joined["param_groups"][0]["lr"],
        joined["param_groups"][1]["nested"][0][0],
        joined["best"]["metric"],
    ):
        assert type(one) is type(scalar.item())


@pytest.mark.parametrize(
    "value",
    [
        np.ones(2),
        np.longdouble(1),
        nn.Linear,
        nn.Linear(1, 1),
        lambda: 0,
        {1: np.datetime64("2020")},
        np.timedelta64(3, "ns"),
    ],
)
def test_a_value_that_only_code_could_read_back_is_refused_by_its_path_when_it_is_split(
    value: object,
) -> None:
    with pytest.raises(
        UnreadableValue, match=r"groups\.1\.value(\.1)? is a .*which can only be read back by"
    ):
        split({"groups": [{"lr": 0.1}, {"value": value}]})


@pytest.mark.parametrize("tensor", [torch.ones(2).to_sparse(), torch.ones(2, device="meta")])
def test_a_tensor_that_is_not_dense_is_named(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"objects\.1 is not a dense tensor"):
        split({"objects": [1, tensor]})


def test_tied_tensors_are_split_once_and_joined_tied() -> None:
    model = nn.ModuleDict({"embedding": nn.Linear(3, 2), "head": nn.Linear(3, 2)})
    model["head"].weight = model["embedding"].weight
    tree, named = split({"model": model.state_dict()})
    assert list(named) == ["model.embedding.weight", "model.embedding.bias", "model.head.bias"]
    joined = join(tree, {name: tensor.clone() for name, tensor in named.items()})["model"]
    assert joined["head.weight"] is joined["embedding.weight"]


def test_all_names_of_tied_tensors_are_found_with_the_first() -> None:
    shared = torch.ones(2)
    tensors, firsts = tensors_of({"a": shared, "b": [shared.detach()], "c": torch.ones(2)})
    assert list(tensors) == ["a", "b.0", "c"]
    assert firsts == {"a": "a", "b.0": "a", "c": "c"}


@pytest.mark.parametrize(
    "other",
    [
        lambda one: one.t(),
        lambda one: one[:, :1],
        lambda one: one[1:],
        lambda one: one.view(-1),
        lambda one: one.view(torch.int32),
        lambda one: one.clone(),
        lambda one: torch.empty(0),
    ],
)
def test_another_view_of_the_same_memory_is_not_tied(other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    square = torch.arange(4.0).view(2, 2)
    state = {"square": square, "none": torch.empty(0), "other": other(square)}
    tree, named = split(state)
    assert len(named) == 3
    assert same(join(tree, named), state)


def test_lazily_conjugated_tensor_is_not_tied_to_its_original() -> None:
    _, named = split({"one": (one := torch.ones(2, dtype=torch.complex64)), "other": one.conj()})
    assert len(named) == 2
