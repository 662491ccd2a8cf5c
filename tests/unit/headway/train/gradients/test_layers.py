from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.layers import Layers


class Walked(nn.Sequential):
    """A model that counts how often all of its layers are walked through."""

    walks = 0

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        self.walks += 1
        return super().named_modules(*args, **kwargs)


def made() -> Walked:
    return Walked(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_a_step_walks_through_the_layers_only_if_they_have_changed() -> None:
    model = made()
    gradients = Gradients(model, device=torch.device("cpu"))

    def walks_of_steps() -> int:
        before = model.walks
        for _ in range(8):
            gradients.begin(2, global_batch=2, first=True, last=True)
            gradients.model(torch.ones(2, 2)).mean().backward()
        return model.walks - before

    walks_of_steps()
    assert walks_of_steps() == 0
    model.append(nn.Linear(2, 2))
    assert 0 < walks_of_steps() <= 4


def replace_inner(model: Walked) -> None:
    model[1][0] = nn.Linear(2, 2)


def replace_parameter(model: Walked) -> None:
    model[1][0].weight = nn.Parameter(torch.ones(2, 2))


def remove_parameter(model: Walked) -> None:
    model[0].register_parameter("bias", None)


def remove_layer(model: Walked) -> None:
    del model[1][0]  # torch puts another dict in place of that of the children


def add_without_parameters(model: Walked) -> None:
    model[1].insert(0, nn.Sequential())
    model[1][0].append(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "change", [replace_inner, replace_parameter, remove_parameter, remove_layer, add_without_parameters]
)
def test_every_change_of_layers_is_seen_once(change: Callable[[Walked], None]) -> None:
    model = made()
    layers = Layers(model)
    before = layers.look()
    assert layers.look() == before
    change(model)
    after = layers.look()
    assert after != before
    assert layers.look() == after
    replace_inner(model)
    assert layers.look() not in {before, after}


def test_buffers_are_the_present_ones_each_once() -> None:
    model = made()
    layers = Layers(model)
    model[1][1].running_mean = torch.ones(2)
    model[0].register_buffer("tied", model[1][1].running_var)
    model[0].register_buffer("none", None)
    assert [id(one) for one in layers.buffers()] == [id(one) for one in model.buffers()]
    model.append(nn.BatchNorm1d(2))
    layers.look()
    assert [id(one) for one in layers.buffers()] == [id(one) for one in model.buffers()]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_module_of_torchscript_is_listed_at_every_look() -> None:
    layers = Layers(nn.Sequential(torch.jit.trace(nn.Linear(2, 2), torch.ones(3, 2))))  # type: ignore[no-untyped-call]
    assert layers.look() != layers.look()
