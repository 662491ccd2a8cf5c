"""Modules that change in training and were not given to `prepare` are named, and no others."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headway.train.checkpoint.replica import Replica
from headway.train.state.strays import StrayModules

STEPS = 40


def train(
    build: Callable[[nn.Module], Any],
    after_step: Callable[[Any, nn.Module, int], object],
    *,
    given: bool = False,
) -> list[tuple[int, str]]:
    """Train a model beside what `build` makes of it, and return the steps after which something was said."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    beside = build(model)
    strays = StrayModules(Replica([model, optimizer, *([beside] if given else [])]))
    said = []
    for step in range(1, STEPS + 1):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(beside, model, step)
        if text := strays.after_step():
            said.append((step, text))
    return said


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999))


def follow(copied: nn.Module, model: nn.Module, decay: float = 0.9999) -> None:
    with torch.no_grad():
        for its, one in zip(copied.parameters(), model.parameters(), strict=True):
            its.data.mul_(decay).add_(one.data, alpha=1 - decay)


def test_average_of_torch_is_named_after_its_first_updates_and_only_once() -> None:
    ((step, text),) = train(average, lambda one, model, _: one.update_parameters(model))
    assert step == 2
    assert text.startswith("beside (AveragedModel) changes in training")


def test_average_that_begins_late_is_named_then() -> None:
    ((step, _),) = train(average, lambda one, model, step: step >= 20 and one.update_parameters(model))
    assert step == 32


def test_copy_that_follows_the_model_in_each_step_is_named_by_the_object_that_has_it() -> None:
    ((step, text),) = train(
        lambda model: SimpleNamespace(shadow=copy.deepcopy(model)),
        lambda one, model, _: follow(one.shadow, model),
    )
    assert step == 4
    assert text.startswith("beside.shadow (Sequential)")


def test_average_that_was_given_to_prepare_is_not_named() -> None:
    assert not train(average, lambda one, model, _: one.update_parameters(model), given=True)


@pytest.mark.parametrize("every", [0, 2, 4])
def test_copy_that_is_constant_or_made_for_evaluations_is_not_named(every: int) -> None:
    def evaluate(copied: nn.Module, model: nn.Module, step: int) -> None:
        if every and step % every == 0:
            copied.load_state_dict(model.state_dict())

    assert not train(copy.deepcopy, evaluate)


def test_module_around_the_model_is_not_named() -> None:
    assert not train(lambda model: nn.ModuleList([model]), lambda *_: None)
    assert not train(lambda model: [model, SimpleNamespace(net=model)], lambda *_: None)


def test_fresh_copy_in_each_step_is_not_named() -> None:
    assert not train(
        lambda model: {"copy": model}, lambda one, model, _: one.update(copy=copy.deepcopy(model))
    )


class Target:
    """Object that a variable refers to only weakly."""


class Unfinished(nn.Module):
    """Module whose own `parameters` fails."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        raise RuntimeError(f"not ready ({recurse})")


def test_dead_proxy_in_a_variable_is_passed_over(capfd: pytest.CaptureFixture[str]) -> None:
    target = Target()
    proxy = weakref.proxy(target)
    del target
    assert not train(lambda _: None, lambda *_: None)
    assert "are not looked for" not in capfd.readouterr().err
    with pytest.raises(ReferenceError):
        assert proxy.anything


def test_module_that_cannot_be_read_ends_the_search_and_not_training(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert not train(lambda _: Unfinished(), lambda *_: None)
    assert capfd.readouterr().err.count("are not looked for: RuntimeError: not ready") == 1
