"""Optimizers of a sharded model, by the names of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from headway.train.checkpoint.replica import Replica
from headway.train.gradients.averaging import Gradients
from headway.train.sharding.optimizers import ShardedOptimizers
from headway.train.sharding.redundancy import RedundancyUnsupported
from headway.train.sharding.resharder import Resharder


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    first, last = model.children()
    return [AdamW(first.parameters(), lr=0.1), SGD(last.parameters(), lr=0.2, momentum=0.9)]


def train(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    model(torch.ones(3, 2)).sum().backward()
    for one in optimizers:
        one.step()


def test_each_optimizer_gets_its_own_groups_and_states_of_another_model() -> None:
    model, other = model_of(), model_of()
    optimizers = optimizers_of(model)
    states = ShardedOptimizers(optimizers)
    train(model, optimizers)
    optimizers[0].param_groups[0]["lr"] = 0.3
    by_name = dict(model.named_parameters())
    kept = {name: states.state_of(one) for name, one in by_name.items()}
    states.put_groups(other, states.groups(model))
    states.put_states(other, kept)
    first, last = other.children()
    assert optimizers[0].param_groups[0]["params"] == list(first.parameters())
    assert optimizers[0].param_groups[0]["lr"] == 0.3
    assert set(optimizers[0].state) == set(first.parameters())
    assert set(optimizers[1].state) == set(last.parameters())
    for name, one in other.named_parameters():
        assert states.state_of(one) is kept[name]
    assert states.state_of(by_name["0.weight"]) == {}


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    model = model_of()
    with pytest.raises(ValueError, match="same parameter"):
        ShardedOptimizers([SGD(model.parameters()), SGD(model.parameters())])


def test_a_parameter_that_the_model_has_not_is_refused() -> None:
    states = ShardedOptimizers([SGD(model_of().parameters())])
    with pytest.raises(ValueError, match="not the model's"):
        states.groups(model_of())


def test_an_optimizer_that_has_taken_steps_is_refused() -> None:
    model = model_of()
    optimizers = optimizers_of(model)
    train(model, optimizers)
    with pytest.raises(ValueError, match="has taken steps"):
        ShardedOptimizers(optimizers)


def test_copies_of_several_optimizers_are_refused() -> None:
    model = model_of()
    with pytest.raises(RedundancyUnsupported):
        Resharder(
            lambda model, _mesh: model,
            ("fsdp",),
            replica=Replica([model, *optimizers_of(model)], will_shard=True),
            gradients=Gradients(model, device=torch.device("cpu")),
            device=torch.device("cpu"),
            redundant=True,
        )
