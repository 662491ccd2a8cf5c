"""The layers of a model, looked at in every step: torch's own walk takes up to a millisecond for a few hundred of them."""

from __future__ import annotations

from collections.abc import Sequence, ValuesView
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

_EVERY = 16
"""Looks of which one also compares the dicts of the modules themselves, which takes half of its time."""
_KINDS = tuple(map(attrgetter, ("_modules", "_parameters", "_buffers")))


class Layers:
    """The modules of a model, to which a script may add some, or replace some, at any time.

    A look runs no Python code for each module: their children, parameters and buffers are read through views that stay up to
    date, and compared with those before. No function of torch replaces the dicts that have them, so this is found later.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._version = self._looks = 0
        self._list()

    def look(self) -> int:
        """Look at the model again, and return a number that is another one whenever its modules or parameters are others."""
        found = [*chain.from_iterable(self._contents)]
        self._looks += 1
        if not (
            self._has_views
            and len(found) == len(self._known)
            and all(map(is_, found, self._known))
            and (self._looks % _EVERY or all(map(is_, self._present_dicts(), self._dicts)))
        ):
            self._list()
            self._version += 1
        return self._version

    def buffers(self) -> list[torch.Tensor]:
        """Return the present buffers of the modules that `look` has found last, each once. Any step may set new ones."""
        found = chain.from_iterable(self._buffers)
        return list({id(one): one for one in found if one is not None}.values())

    def _list(self) -> None:
        self._modules = list(self._model.modules())
        self._dicts = list(self._present_dicts())
        # Modules of TorchScript have no dicts, so no views.
        self._has_views = all(isinstance(one, dict) for one in self._dicts)
        views = [one.values() for one in self._dicts]
        count = len(self._modules)
        self._contents: Sequence[ValuesView[object]] = views[: 2 * count]
        self._buffers: Sequence[ValuesView[Any]] = views[2 * count :]
        self._known: list[object] = [*chain.from_iterable(self._contents)]

    def _present_dicts(self) -> chain[dict[str, Any]]:
        """Return the children of each module, then the parameters of each, and then the buffers."""
        return chain.from_iterable(map(kind, self._modules) for kind in _KINDS)
