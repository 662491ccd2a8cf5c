"""The state of a model whose pipeline stages are on several ranks, from the trees of all stages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headway.train.checkpoint.staging import join

_ABSENT = object()
"""A tensor of another stage, which this rank does not have."""


class _Held(dict[str, Any]):
    def __missing__(self, name: str) -> object:
        return _ABSENT


def join_stages(trees: Sequence[bytes], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the union of the states that ranks of several stages took apart, with these tensors and without others.

    Of values that several stages have, those of the first count.

    Raises:
        TypeError: a tree holds objects that only code could read back.
    """
    return _without_absent(functools.reduce(_merged, (join(tree, _Held(tensors)) for tree in trees)))


def _merged(first: Any, second: Any) -> Any:
    if first is _ABSENT:
        return second
    if isinstance(first, dict) and isinstance(second, dict):
        for key, value in second.items():
            first[key] = _merged(first[key], value) if key in first else value
        if hasattr(first, "_metadata") and hasattr(second, "_metadata"):  # versions of modules, by name
            first._metadata = {**second._metadata, **first._metadata}  # noqa: SLF001
        return first
    if isinstance(first, list) and isinstance(second, list):
        # Names of parameters in a group of the optimizer.
        if all(isinstance(one, str) for one in (*first, *second)):
            return list(dict.fromkeys([*first, *second]))
        if len(first) == len(second):
            return list(map(_merged, first, second))
    return first


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        for key, one in list(value.items()):
            if one is _ABSENT:
                del value[key]
            else:
                value[key] = _without_absent(one)
    elif isinstance(value, list):
        value[:] = map(_without_absent, value)
    return value
