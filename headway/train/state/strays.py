"""Modules of the script that change in training, such as moving averages of the model, and were not given to `prepare`."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from headway.train.checkpoint.replica import Replica
from headway.train.host.output import warn

_FIRST = 2
_LOOKS = 3
"""Looks in successive steps: a module that differs in all of them changes in each step, unlike a copy for an evaluation."""
_READ_TENSORS, _READ_VALUES = 4, 4096
"""Parameters of a module, and values of each, that are compared."""
_MOST_PARTS = 64
"""Values of an object, list or dictionary that are looked at."""
_LIBRARIES = ("headway", "torch", "importlib", "runpy")


class StrayModules:
    """The search for such modules, in the variables of the script's functions that are running, and in their attributes.

    It looks after the 2nd, 8th, 16th, 32nd, … step of this process and the two that follow each, so its time is negligible.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._steps = 0
        self._begins = _FIRST
        self._seen: dict[int, tuple[weakref.ref[nn.Module], list[tuple[str, ...]]]] = {}
        self._done = False

    def after_step(self) -> str | None:
        """Look after a step if that is due, and return the sentence about the first module found, once; None without any."""
        self._steps += 1
        if self._done or self._steps < self._begins:
            return None
        if self._replica.is_sharded:
            self._done = True  # to read parts of its tensors would need all ranks
            return None
        try:
            found = self._look(sys._getframe(1))  # noqa: SLF001  # the script's variables
        except Exception as error:  # noqa: BLE001  # methods of the script's modules, or a full device; it must go on
            self._done, self._seen = True, {}
            warn(
                f"modules that were not given to prepare() are not looked for: {type(error).__name__}: {error}"
            )
            return None
        if self._steps == self._begins + _LOOKS - 1:
            self._begins, self._seen = max(8, 2 * self._begins), {}
        if found is None:
            return None
        self._done, self._seen = True, {}
        name, module = found
        return (
            f"{name} ({type(module).__qualname__}) changes in training, but was not given to prepare(): its values reach neither "
            "checkpoints nor new ranks, so a restart or a new rank begins with others; give it to prepare()"
        )

    def _look(self, frame: FrameType) -> tuple[str, nn.Module] | None:
        kept = {
            id(its) for one in self._replica.objects if isinstance(one, nn.Module) for its in one.parameters()
        }
        for name, module in _modules_of(frame):
            strays = [one for one in module.parameters() if id(one) not in kept and _is_readable(one)]
            if not strays or any(module is one for one in self._replica.objects):
                continue
            if isinstance(module, AveragedModel) and int(module.n_averaged) > 0:
                return name, module
            known, looks = self._seen.get(id(module), (None, []))
            if known is None or known() is not module:
                looks = []
                self._seen[id(module)] = weakref.ref(module), looks
            looks.append(_print_of(strays))
            if len(looks) == _LOOKS and all(a != b for a, b in pairwise(looks)):
                return name, module
        return None


def _print_of(parameters: list[nn.Parameter]) -> tuple[str, ...]:
    """Return sums over some values of some parameters, to the last bit."""
    some = parameters[:: -(-len(parameters) // _READ_TENSORS)]
    return tuple(float(one.detach().reshape(-1)[:_READ_VALUES].double().sum()).hex() for one in some)


def _is_readable(one: nn.Parameter) -> bool:
    return (
        type(one) is nn.Parameter
        and one.is_floating_point()
        and one.layout == torch.strided
        and not one.is_meta
        and one.numel() > 0
    )


def _modules_of(frame: FrameType | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module once, with the name of its variable, from the calling functions of the script."""
    seen: set[int] = set()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES:
            scopes = (
                [frame.f_globals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
            )
            for scope in scopes:
                for name, one in list(scope.items()):
                    for path, module in _modules_in(name, one):
                        if id(module) not in seen:
                            seen.add(id(module))
                            yield path, module
        frame = frame.f_back


def _modules_in(name: str, one: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module, or those that an object, a list or a dictionary has. No code of the script runs: not even `__class__` of a proxy."""
    if issubclass(type(one), nn.Module):
        yield name, one
        return
    if type(one) in {list, tuple}:
        parts = [(f"{name}[{number}]", part) for number, part in enumerate(one[:_MOST_PARTS])]
    elif type(one) is dict:
        parts = [
            (f"{name}[{key!r}]", part) for key, part in list(one.items())[:_MOST_PARTS] if type(key) is str
        ]
    elif issubclass(type(one), type | ModuleType | FunctionType) or type(one).__module__.startswith(
        "headway"
    ):
        return
    else:
        try:
            its = object.__getattribute__(one, "__dict__")
        except AttributeError:
            return
        if type(its) is not dict:
            return
        parts = [(f"{name}.{key}", part) for key, part in list(its.items())[:_MOST_PARTS]]
    yield from ((path, part) for path, part in parts if issubclass(type(part), nn.Module))
