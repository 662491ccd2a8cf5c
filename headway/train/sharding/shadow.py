"""A copy of another rank's shards, which takes the same optimizer steps as they do."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

ShardKey = tuple[str, str]
"""Name of a parameter, and of a value in its optimizer state; the empty text for the parameter itself."""


class Shadow:
    """Copies of shards as plain tensors, with an optimizer of the same class, settings and state.

    Args:
        optimizer: the rank's own optimizer. Its state of a parameter that is not sharded is that of the copy, too.
        names: name of each sharded parameter of the optimizer, by identity.
        tensors: the copies of the parameters and of their sharded state.
    """

    def __init__(
        self, optimizer: Optimizer, names: Mapping[int, str], tensors: Mapping[ShardKey, torch.Tensor]
    ) -> None:
        self._optimizer = optimizer
        self._values = {name: nn.Parameter(one) for (name, key), one in tensors.items() if not key}
        of_groups = [
            [names[id(one)] for one in group["params"] if id(one) in names]
            for group in optimizer.param_groups
        ]
        self._groups = [number for number, of_group in enumerate(of_groups) if of_group]
        self._copy: Optimizer = type(optimizer)(
            [  # type: ignore[call-arg]  # the classes that are allowed have defaults for all but the parameters
                {**self._settings(number), "params": [self._values[name] for name in of_groups[number]]}
                for number in self._groups
            ]
        )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in names and parameter in optimizer.state:
                    self._copy.state[self._values[names[id(parameter)]]] = _without_shards(
                        optimizer.state[parameter], names[id(parameter)], tensors
                    )

    @property
    def tensors(self) -> dict[ShardKey, torch.Tensor]:
        """The copies of the parameters and of their state, as they are after the last step."""
        found: dict[ShardKey, torch.Tensor] = {}
        for name, value in self._values.items():
            found[name, ""] = value.detach()
            for key, one in self._copy.state.get(value, {}).items():
                if isinstance(one, torch.Tensor) and one.shape == value.shape:
                    found[name, key] = one
        return found

    def step(self, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Take a step with these gradients by name, at the present settings of the rank's own optimizer."""
        for group, number in zip(self._copy.param_groups, self._groups, strict=True):
            group.update(self._settings(number))
        for name, gradient in gradients.items():
            self._values[name].grad = gradient
        self._copy.step()

    def _settings(self, number: int) -> dict[str, Any]:
        return {key: value for key, value in self._optimizer.param_groups[number].items() if key != "params"}


def _without_shards(
    state: Mapping[str, Any], name: str, tensors: Mapping[ShardKey, torch.Tensor]
) -> dict[str, Any]:
    """Return the state of a copied parameter: the copied tensors, and copies of the values that are not sharded."""
    return {
        key: tensors[name, key] if (name, key) in tensors else copy.deepcopy(value)
        for key, value in state.items()
    }


def pack(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the bytes of the tensors in one buffer."""
    parts = [
        # `contiguous()` leaves a one-element tensor its stride, and the view as bytes needs stride 1.
        one.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
        for one in tensors
        if one.numel()
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)


def unpack(buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Fill the tensors from a buffer of `pack`."""
    start = 0
    for one in tensors:
        part = buffer[start : start + one.nbytes]
        start += one.nbytes
        if one.numel():
            one.copy_(part.clone().view(one.dtype).view(one.shape))  # the clone is aligned for the type
