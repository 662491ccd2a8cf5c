"""Reading settings from the environment: one value at a time, with a sentence for each that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class SettingsError(Exception):
    """A setting is missing or wrong; the message says which and what to set."""


def text_of(env: Mapping[str, str], name: str) -> str:
    """A value that must be there. Raises SettingsError."""
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; see docs/reference/settings.md, or use `headway up`.")
    return value


def number_of(env: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    """A number within bounds. Raises SettingsError."""
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise SettingsError(f"{name} must be a number, not {text!r}.") from None
    if not low <= value <= high:
        raise SettingsError(f"{name} must lie between {low:g} and {high:g}, not {value:g}.")
    return value


def path_of(env: Mapping[str, str], name: str) -> Path | None:
    """A path, or None where there is none."""
    text = env.get(name, "").strip()
    return Path(text) if text else None


def words_of(env: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    """Words between commas or spaces."""
    return tuple(env.get(name, default).replace(",", " ").split())


def switch_of(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Whether a variable says on or off; `default` where it is not set. Raises SettingsError for anything else."""
    text = env.get(name, "").strip().lower()
    if text not in {"", "on", "off"}:
        raise SettingsError(f"{name} must be on or off, not {text!r}.")
    return text == "on" if text else default
