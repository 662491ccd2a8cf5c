"""The optimizers of a sharded model, whose groups and states are known by the names of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from headway.train.sharding.template import named_parameters

NamedGroups: TypeAlias = list[list[dict[str, Any]]]
"""Parameter groups of each optimizer, with names of parameters."""


class ShardedOptimizers:
    """The optimizers of one model, each of parameters of its own. They stay the same objects when the model is replaced.

    Raises:
        ValueError: an optimizer has a state already, or two have the same parameter.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        if any(one.state for one in optimizers):
            raise ValueError("the optimizer has taken steps already; give prepare() a new one")
        self._optimizers = optimizers
        trained = [id(one) for one in self.parameters()]
        if len(set(trained)) < len(trained):
            raise ValueError(
                "two optimizers have the same parameter; give each parameter of a model to shard to one optimizer"
            )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all optimizers."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the state of a parameter; an empty one if no optimizer has any."""
        states = (one.state[parameter] for one in self._optimizers if parameter in one.state)
        found: dict[str, Any] = next(states, {})
        return found

    def values(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yield each value of the states with its parameter."""
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for value in state.values():
                    yield parameter, value

    def groups(self, model: nn.Module) -> NamedGroups:
        """Return the groups with the names that the parameters have in this model.

        Raises:
            ValueError: a parameter is not the model's.
        """
        names = {id(one): name for name, one in named_parameters(model).items()}
        try:
            return [
                [
                    {**group, "params": [names[id(one)] for one in group["params"]]}
                    for group in optimizer.param_groups
                ]
                for optimizer in self._optimizers
            ]
        except KeyError:
            raise ValueError("the optimizer has parameters that are not the model's") from None

    def put_groups(self, model: nn.Module, groups: NamedGroups) -> None:
        """Give the optimizers these groups, of which the model may be a stage. A group may become empty."""
        by_name = named_parameters(model)
        for optimizer, its_groups in zip(self._optimizers, groups, strict=True):
            present = optimizer.param_groups
            present += [{} for _ in its_groups[len(present) :]]
            for group, its in zip(present, its_groups, strict=True):
                group.update({**its, "params": [by_name[name] for name in its["params"] if name in by_name]})

    def put_states(self, model: nn.Module, states: Mapping[str, dict[str, Any]]) -> None:
        """Replace all states by these, by name. The model may be a stage, which lacks some of the parameters."""
        by_name = named_parameters(model)
        for optimizer in self._optimizers:
            optimizer.state.clear()
            trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for name, state in states.items():
                if id(by_name.get(name)) in trained:
                    optimizer.state[by_name[name]] = state
