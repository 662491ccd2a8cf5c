"""Checks of the values in rank messages, so that they can be stored and added up. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeGuard

_LATEST_S = 253_402_214_400.0
"""Latest accepted time and longest accepted duration: the end of the year 9999, as Unix seconds."""
_COUNTED_IN_SAMPLES_OR_BYTES = frozenset(
    {
        "samples",
        "total_samples",
        "samples_seen",
        "dataset_samples",
        "size_bytes",
        "sync_bytes",
        "memory",
    }
    | {"progress", "total_progress", "repeated_samples"}
)
_MOST_SAMPLES = 2**53
_MOST = 2**31 - 1
_MOST_RANKS = 65_536


def check_of(name: str, annotation: str) -> Callable[[object], bool]:
    """Return the check of the values of a field with this name and annotation."""
    of = annotation.removesuffix(" | None")
    if of != annotation:
        is_right = check_of(name, of)
        return lambda value: value is None or is_right(value)
    match of:
        case "int":
            most = _MOST_SAMPLES if name in _COUNTED_IN_SAMPLES_OR_BYTES else _MOST
            return lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
        case "float":
            most_float = _most_float(name)
            return lambda value: isinstance(value, int | float) and 0 <= value <= most_float
        case "bool":
            return lambda value: isinstance(value, bool)
        case "str":
            return _is_text
        case "tuple[int, ...]" | "tuple[float, ...]" | "tuple[str, ...]":
            each = check_of(name, of.removeprefix("tuple[").removesuffix(", ...]"))
            return lambda value: (
                isinstance(value, list | tuple) and len(value) <= _MOST_RANKS and all(map(each, value))
            )
        case "dict[str, float]":
            return lambda value: isinstance(value, dict) and all(_is_text(key) for key in value)
    raise AssertionError(f"no check for the type {annotation} of {name}")


def _most_float(name: str) -> float:
    if name.startswith("gradient_"):
        return sys.float_info.max
    return _MOST_SAMPLES if name in _COUNTED_IN_SAMPLES_OR_BYTES else _LATEST_S


def is_finite(value: object) -> TypeGuard[float]:
    """Return True for a number that JSON can represent."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _is_text(value: object) -> bool:
    """Return True for text that every store accepts: printable, without NUL, at most 4096 characters."""
    return isinstance(value, str) and "\0" not in value and value.isprintable() and len(value) <= 4096
