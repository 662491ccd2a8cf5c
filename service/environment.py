"""Readers for settings in the environment, one value at a time, with an error message for each invalid value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class SettingsError(Exception):
    """Error: a setting is missing or wrong. The message says which, and what to set."""


def text_of(env: Mapping[str, str], name: str) -> str:
    """Return a required value. Raise SettingsError if it is missing."""
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; see docs/reference/settings.md, or use `headway up`.")
    return value


def number_of(env: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    """Return a number within bounds. Raise SettingsError for any other value."""
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise SettingsError(f"{name} must be a number, not {text!r}.") from None
    if not low <= value <= high:
        raise SettingsError(f"{name} must lie between {low:g} and {high:g}, not {value:g}.")
    return value


def path_of(env: Mapping[str, str], name: str) -> Path | None:
    """Return a path, or None if the variable is not set."""
    text = env.get(name, "").strip()
    return Path(text) if text else None


def cluster_of(env: Mapping[str, str]) -> str:
    """Return the name of this cluster at its providers of machines. Raise SettingsError for one that they do not take."""
    name = env.get("HEADWAY_CLUSTER", "headway").strip()
    if not _CLUSTER.fullmatch(name):
        raise SettingsError(
            f"HEADWAY_CLUSTER: {name!r} is not a valid name; use letters, digits, `-`, `_` and `.`"
        )
    return name


def words_of(env: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    """Return the words of a value, separated by commas or spaces."""
    return tuple(env.get(name, default).replace(",", " ").split())


def switch_of(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether a variable is on or off, or `default` if it is not set.

    Raise SettingsError otherwise.
    """
    text = env.get(name, "").strip().lower()
    if text not in {"", "on", "off"}:
        raise SettingsError(f"{name} must be on or off, not {text!r}.")
    return text == "on" if text else default
