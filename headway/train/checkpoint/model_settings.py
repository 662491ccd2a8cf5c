"""The settings of a model beside its tensors: which parameters train, modes, and numbers such as the rate of a dropout.

A script may change them at any step, once. Therefore they belong to the state that other ranks and later processes take over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headway.train.host.output import warn

Settings = Mapping[str, Mapping[str, Any]]
"""Values of modules, by the name of the module and that of its attribute."""

_PLAIN = (bool, int, float, str)
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}


class ModelSettings:
    """The attributes of the models' modules that the script has changed since `begin`; `models` returns the present models.

    Others are equal where the same script runs, or are a rank's own. A whole number stays a rank's own, too, if an attribute of its
    module that is no plain value has changed: it is the size of a cache, which does not travel.
    """

    def __init__(self, models: Callable[[], Sequence[nn.Module]]) -> None:
        self._models = models
        self._first: list[dict[str, _Attributes]] = []
        self._pending: Sequence[Settings] = ()

    def begin(self) -> None:
        """Look at the models at the beginning of the training loop, and then put what was taken over before."""
        self._first = [_read(one) for one in self._models()]
        self._put(self._pending)

    @property
    def changed(self) -> list[dict[str, dict[str, Any]]]:
        """The attributes that have changed, of each model."""
        if not self._first:
            return [{name: dict(its) for name, its in one.items()} for one in self._pending]
        return [
            {name: found for name, its in _read(model).items() if (found := its.since(first.get(name)))}
            for model, first in zip(self._models(), self._first, strict=True)
        ]

    def take_over(self, changed: Sequence[Settings]) -> None:
        """Set the attributes that have changed elsewhere, and set others back that have changed here."""
        self._pending = changed
        if self._first:
            self._put(changed)

    def _put(self, changed: Sequence[Settings]) -> None:
        for model, first, here, there in zip(
            self._models(), self._first, self.changed, changed, strict=False
        ):
            for name, module in model.named_modules():
                plain = first[name].plain if name in first else {}
                own = {key: plain[key] for key in here.get(name, ()) if key in plain}
                vars(module).update({**own, **there.get(name, {})})


class _Attributes:
    """The plain values of a module, and the kinds of its other attributes."""

    def __init__(self, module: nn.Module) -> None:
        own = {name: value for name, value in vars(module).items() if name not in _OF_TORCH}
        self.plain = {name: value for name, value in own.items() if type(value) in _PLAIN}
        self._others = {name: _kind(value) for name, value in own.items() if name not in self.plain}

    def since(self, first: _Attributes | None) -> dict[str, Any]:
        if first is None:
            return {}
        caches = self._others != first._others  # noqa: SLF001  # of the same class
        return {
            name: value
            for name, value in self.plain.items()
            if repr(first.plain.get(name, ...)) != repr(value) and not (caches and type(value) is int)
        }


def _read(model: nn.Module) -> dict[str, _Attributes]:
    return {name: _Attributes(module) for name, module in model.named_modules()}


def _kind(value: object) -> tuple[Any, ...]:
    size = value.shape if isinstance(value, torch.Tensor) else ()
    return type(value), tuple(size), len(value) if isinstance(value, (list, dict, tuple, set)) else 0


def frozen_of(model: nn.Module) -> list[str]:
    """Return the names of the parameters that do not train."""
    return [name for name, one in model.named_parameters() if not one.requires_grad]


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """Have all parameters but these train, as when the state was saved."""
    frozen, changed = set(names), []
    for name, one in model.named_parameters():
        if one.requires_grad == (name in frozen):
            one.requires_grad_(name not in frozen)
            changed.append(name)
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        warn(f"the checkpoint sets requires_grad as it was saved: {changed[0]}{more}")
