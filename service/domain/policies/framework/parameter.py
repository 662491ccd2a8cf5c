"""Declaration of policy parameters: dataclass fields with a description and an interval of valid values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_KEY = "parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Description of a parameter, and the open or closed interval of its valid values."""

    text: str
    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Return True if `value` is in the interval; infinities and NaN never are."""
        return (
            math.isfinite(value)
            and self.above < value < self.below
            and self.at_least <= value <= self.at_most
        )

    def interval(self) -> str:
        """Return the interval in words, such as "above 0, at most 1"; empty if every number is valid."""
        limits = (
            ("above", self.above),
            ("at least", self.at_least),
            ("at most", self.at_most),
            ("below", self.below),
        )
        return ", ".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit))


def parameter(default: Any, text: str, **interval: float) -> Any:
    """Return a dataclass field for a parameter: a number or a tuple of numbers, each within `interval` (see
    `Meaning`).
    """
    return field(default=default, metadata={_KEY: Meaning(text=text, **interval)})


def meaning(metadata: Mapping[str, Any]) -> Meaning:
    """Return the description in a field's metadata; an empty one if there is none."""
    found = metadata.get(_KEY)
    return found if isinstance(found, Meaning) else Meaning(text="")
