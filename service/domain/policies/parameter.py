"""How a policy declares a parameter: a dataclass field that knows what it means and which values make sense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_KEY = "parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a parameter does, and the open or closed interval that its value must lie in."""

    text: str
    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether `value` is in the interval; infinities and NaN never are."""
        return (
            math.isfinite(value)
            and self.above < value < self.below
            and self.at_least <= value <= self.at_most
        )

    def interval(self) -> str:
        """The interval in words, such as "above 0, at most 1"; empty when every number will do."""
        limits = (
            ("above", self.above),
            ("at least", self.at_least),
            ("at most", self.at_most),
            ("below", self.below),
        )
        return ", ".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit))


def parameter(default: Any, text: str, **interval: float) -> Any:
    """A field of a policy, a number or a tuple of numbers; `interval` as in `Meaning`, for each of them."""
    return field(default=default, metadata={_KEY: Meaning(text=text, **interval)})


def meaning(metadata: Mapping[str, Any]) -> Meaning:
    """What the field with this metadata means."""
    found = metadata.get(_KEY)
    return found if isinstance(found, Meaning) else Meaning(text="")
