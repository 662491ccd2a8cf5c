"""A template builds the same model again, without values and with what modules share."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from headway.train.sharding.template import Template, named_parameters, plain_name, put_tensors


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.first.weight
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
        self.fixed.no_decay = True  # type: ignore[attr-defined]
        self.register_buffer("mask", torch.ones(3), persistent=False)


def unchanged(model: nn.Module, _mesh: Any) -> None:
    """Shards nothing."""


def test_a_built_model_has_no_values_and_the_same_structure() -> None:
    mesh: Any = None
    template = Template(Tied(), unchanged)
    built: Any = template.build(mesh)
    assert all(one.is_meta for one in (*built.parameters(), *built.buffers()))
    assert built.head.weight is built.first.weight
    assert (built.fixed.requires_grad, built.fixed.no_decay) == (False, True)
    assert template.build(mesh) is not built


def test_tensors_replace_those_of_every_module_that_shares_them() -> None:
    mesh: Any = None
    built: Any = Template(Tied(), unchanged).build(mesh)
    values = {name: torch.full(one.shape, 2.0) for name, one in named_parameters(built).items()}
    put_tensors(built, values, {"mask": torch.zeros(3)})
    assert built.head.weight is built.first.weight
    assert built.head.weight.tolist() == [[2.0] * 3] * 3
    assert (built.fixed.requires_grad, built.first.weight.requires_grad) == (False, True)
    assert built.mask.tolist() == [0.0] * 3
    assert "mask" not in built.state_dict()


def test_a_stage_has_the_names_of_the_plain_model() -> None:
    mesh: Any = None

    def last(model: nn.Module, _mesh: Any) -> None:
        model.first = model.fixed = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"parameter head\.weight"):
        Template(Tied(), last).build(mesh)

    def only_fixed(model: nn.Module, _mesh: Any) -> None:
        model.first = model.head = None  # type: ignore[assignment]

    assert list(named_parameters(Template(Tied(), only_fixed).build(mesh))) == ["fixed"]


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="cannot be copied"):
        Template(model, unchanged)


def test_names_are_those_without_wrappers() -> None:
    assert plain_name("blocks.0._checkpoint_wrapped_module._orig_mod.weight") == "blocks.0.weight"
