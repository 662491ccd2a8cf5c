"""Lazy imports. The command line imports only the modules of the running verb, so that it starts fast."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _LazyModule:
    """Stand-in for a module, which imports the module when an attribute is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


def lazy(name: str) -> Any:
    """Return a stand-in for the module `name`.

    The caller imports the same module under `TYPE_CHECKING` for type checkers.
    """
    return _LazyModule(name)
