"""Collective backends by name: the built-in ones, and those that installed packages register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.train.collectives.backend import CollectiveBackend
from headway.train.collectives.gloo import Gloo
from headway.train.collectives.nccl import Nccl

ENTRY_POINTS = "headway.collectives"
"""Entry-point group in which a package registers its backends."""
_BUILT_IN: dict[str, Callable[[], CollectiveBackend]] = {"gloo": Gloo, "nccl": Nccl}


class CollectiveUnavailable(HeadwayError):
    """Raised when a rank cannot use the requested collective backend."""

    code = "COLLECTIVE_UNAVAILABLE"


def make_backend(name: str | None, device: torch.device) -> CollectiveBackend:
    """Return the backend of this name; without a name NCCL for a CUDA device, and gloo for a CPU.

    Raises:
        CollectiveUnavailable: no package registers the name, or the backend does not work here.
    """
    name = name or ("nccl" if device.type == "cuda" else "gloo")
    installed = {} if name in _BUILT_IN else _installed_backends()
    if name not in _BUILT_IN and name not in installed:
        raise CollectiveUnavailable(
            f"COLLECTIVE_UNAVAILABLE: there is no collective backend {name!r} here, only "
            f"{', '.join(sorted({*_BUILT_IN, *installed}))}.",
            "Install the package that has it where the ranks run, or give headway.init() another `collective`.",
        )
    try:
        make = _BUILT_IN[name] if name in _BUILT_IN else installed[name].load()
        return make()
    except Exception as error:
        raise CollectiveUnavailable(
            f"COLLECTIVE_UNAVAILABLE: the collective backend {name!r} does not work here: {error}.",
            "Correct the cause where the ranks run, or give headway.init() another `collective`.",
        ) from error


def _installed_backends() -> dict[str, Any]:
    """Return the entry points of installed packages by name."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # reads the metadata of every installed package

    return {one.name: one for one in entry_points(group=ENTRY_POINTS)}
