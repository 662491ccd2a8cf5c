"""Scales of the parameters and the metric of a sweep: where a value is on an axis, and the labels beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headway.contract.spec_parameters import ParameterValue
from headway.contract.spec_sweep import Range, Space

Place: TypeAlias = Callable[[ParameterValue], float | None]
"""Share of an axis below a value, from 0 (bottom) to 1 (top); None for a value that the axis does not have."""
MOST_LABELS: Final = 12
_WIDE: Final = 100.0
"""Ratio of the largest to the smallest value of a metric from which on its axis is logarithmic."""
_APART: Final = 0.07
"""Smallest distance of labels, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label of an axis, at a share of its length from the bottom."""

    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: its labels, and the place of each value."""

    labels: tuple[Label, ...]
    place: Place
    log: bool = False


def scale_of(space: Space) -> Scale:
    """Return the scale of a parameter. Listed values are equally far apart, numbers in their order above texts."""
    if isinstance(space, Range):
        return _numbers(float(space.min), float(space.max), log=space.log, whole=space.whole)
    numbers = sorted(value for value in space if not isinstance(value, str))
    upwards = [*reversed([value for value in space if isinstance(value, str)]), *numbers]
    last = len(upwards) - 1
    # 1 and 1.0 are different values of a list, and equal as keys.
    shares = {str(value): at / last if last else 0.5 for at, value in enumerate(upwards)}
    every = -(-len(upwards) // MOST_LABELS)
    labels = tuple(Label(shares[str(value)], value_text(value)) for value in upwards[::every])
    return Scale(labels, lambda value: shares.get(str(value)))


def scale_of_metric(values: Sequence[float]) -> Scale:
    """Return the scale of the reported values: logarithmic if they are positive and differ a hundredfold."""
    if not values:
        return Scale((), lambda _: None)
    low, high = min(values), max(values)
    return _numbers(low, high, log=is_wide(values), whole=False)


def is_wide(values: Sequence[float]) -> bool:
    """Return True if values are drawn on a logarithmic scale."""
    return bool(values) and min(values) > 0 and max(values) >= _WIDE * min(values)


def _numbers(low: float, high: float, *, log: bool, whole: bool) -> Scale:
    def bent(value: float) -> float:
        return math.log(value) if log else value

    def place(value: ParameterValue) -> float | None:
        if isinstance(value, str) or (log and value <= 0):
            return None
        if high == low:
            return 0.5
        # halves first: the difference of two finite numbers may not be finite
        share = (bent(value) / 2 - bent(low) / 2) / (bent(high) / 2 - bent(low) / 2)
        return min(1.0, max(0.0, share))

    marks = _decades(low, high) if log else [low + (high - low) * step / 4 for step in range(5)]
    if not all(map(math.isfinite, marks)):
        marks = [low, high]
    rounded = [float(round(one)) for one in marks] if whole else marks
    digits = _digits(low, high)
    labels: list[Label] = []
    for one in dict.fromkeys([low, high, *rounded]):
        share = place(one)
        if share is not None and all(abs(share - other.share) >= _APART for other in labels):
            labels.append(Label(share, value_text(int(one) if whole else one, digits)))
    return Scale(tuple(sorted(labels, key=lambda one: one.share)), place, log)


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, -(-(last - first + 1) // (MOST_LABELS - 2)))
    return [10.0**power for power in range(first, last + 1, every)]


def _digits(low: float, high: float) -> int:
    """Return the significant digits that neighbouring labels need to differ, from 3 to 8."""
    most, span = max(abs(low), abs(high)), high / 2 - low / 2
    if span <= 0 or most == 0:
        return 4
    return min(8, max(3, 2 + math.ceil(math.log10(most) - math.log10(span))))


def value_text(value: ParameterValue, digits: int = 4) -> str:
    """Return a value as text: whole numbers and texts in full, others with this many significant digits."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
