"""Which configurations a job may be given now, from what it has tried. Pure; for all jobs at once.

As Pollux (OSDI'21) and Sia (SOSP'23, section 3.3) do, a job starts with its smallest size on a kind and may grow to twice
the largest that it has tried there, so that a model is trusted only near its data. The next larger size is always
open, else a job of 2 or 16 slots would never leave 2. A change of kind may keep the size: speeds carry over between
kinds. What they lack:

- what jobs of its class have tried need not be tried again: a job may start there, and grow from there;
- growth ends where even an optimist would not expect that it pays;
- what lies beyond all that was tried is weighed by what an optimist expects of it (`hoped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.policies.policy import Configurations

GROWTH: Final = 2
"""A size may be tried up to this multiple of the largest that was."""
MIN_GAIN: Final = 1.05
"""At its best (P90), a larger size must promise at least this factor of what was measured with fewer slots."""


class Exploration(IntEnum):
    """Why a configuration may be tried, or not."""

    NOT_ALLOWED = 0
    TRIED = 1
    HELD = 2
    SMALLEST = 3
    NEXT = 4
    NEAR = 5
    TOO_FAR = 6
    NOT_WORTH_IT = 7
    ALIKE = 8

    @property
    def reason(self) -> str:
        """The same for people."""
        return _REASONS[self]


_REASONS: Final = {
    Exploration.NOT_ALLOWED: "not allowed",
    Exploration.TRIED: "tried before",
    Exploration.HELD: "held now",
    Exploration.SMALLEST: "the smallest size, where a job starts",
    Exploration.NEXT: "the next larger size than tried",
    Exploration.NEAR: f"at most {GROWTH} times the largest size tried",
    Exploration.TOO_FAR: f"more than {GROWTH} times the largest size tried",
    Exploration.NOT_WORTH_IT: "not expected to be faster than fewer slots, as measured",
    Exploration.ALIKE: "tried by jobs of its class",
}
_OPEN: Final = (
    Exploration.TRIED,
    Exploration.ALIKE,
    Exploration.HELD,
    Exploration.SMALLEST,
    Exploration.NEXT,
    Exploration.NEAR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """`mask` (J, C): what each job may be given now; `code` (J, C): an `Exploration` for each."""

    mask: BoolArray
    code: IntArray


def explore(
    configurations: Configurations,
    *,
    allowed: BoolArray,
    tried: BoolArray,
    alike: BoolArray,
    current: IntArray,
    goodput: FloatArray,
    high: FloatArray,
) -> Explored:
    """What of `allowed` (J, C) may be tried now.

    Args:
        configurations: the columns.
        allowed: what the jobs' specs and the cluster allow. A job that is to have one size whatever is known of it has
            only that one here: where no smaller size is allowed, it is the smallest.
        tried: (J, C) where a job has measurements.
        alike: (J, C) where jobs of its class have some.
        current: (J,) the column that a job holds, -1 for none: always open to it.
        goodput: (J, C), P50; where tried, it is near what was measured.
        high: (J, C), its P90.
    """
    kind, slots = configurations.kind, configurations.slots
    code = np.full(allowed.shape, int(Exploration.TOO_FAR), np.int8)
    known = tried | alike
    largest_anywhere = _largest(known, slots)
    for index in range(len(configurations.kinds)):
        # By ascending size, so that what is known of fewer slots stands to the left.
        columns = np.flatnonzero(kind == index)
        columns = columns[np.argsort(slots[columns], kind="stable")]
        if columns.size:
            code[:, columns] = _of_kind(
                slots[columns],
                allowed=allowed[:, columns],
                known=known[:, columns],
                largest_anywhere=largest_anywhere,
                goodput=goodput[:, columns],
                high=high[:, columns],
            )
    holders = np.flatnonzero(current >= 0)
    code[holders, current[holders]] = Exploration.HELD
    code[alike] = Exploration.ALIKE
    code[tried] = Exploration.TRIED
    code[~allowed] = Exploration.NOT_ALLOWED
    return Explored(mask=np.isin(code, _OPEN), code=code.astype(np.int64))


def hoped(
    configurations: Configurations, goodput: FloatArray, high: FloatArray, known: BoolArray
) -> FloatArray:
    """(J, C) the goodput that a decision is to go by: P50 (`goodput`), but beyond what is `known` of a kind, by measurements of the
    job or of its class, P90 (`high`).

    Who goes by P50 alone never learns where it is too low (optimism in the face of uncertainty: Lai and Robbins, 1985), and
    a job whose changes cost much climbs too slowly: the next size is worth more than it brings by itself, since it opens the
    one after it. Of a job of which nothing is known, no configuration is more promising than another.
    """
    kind, slots = configurations.kind, configurations.slots
    beyond = np.zeros_like(known)
    for index in range(len(configurations.kinds)):
        columns = kind == index
        beyond[:, columns] = slots[columns] > _largest(known[:, columns], slots[columns])[:, None]
    return np.where(beyond & known.any(axis=1, keepdims=True), np.fmax(goodput, high), goodput)


def _of_kind(
    slots: IntArray,
    *,
    allowed: BoolArray,
    known: BoolArray,
    largest_anywhere: IntArray,
    goodput: FloatArray,
    high: FloatArray,
) -> IntArray:
    """Codes of the columns of one kind, by ascending slots, without those that depend on one column alone."""
    largest = _largest(known, slots)
    size = np.where(allowed, slots, np.iinfo(np.int64).max)
    following = np.where(size > largest[:, None], size, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    reach = np.maximum(GROWTH * largest, largest_anywhere)[:, None]
    reached = np.where(known & np.isfinite(goodput), goodput, 0.0)
    # NaN promises nothing, and compares so.
    hopeless = (slots > largest[:, None]) & (largest[:, None] > 0)
    hopeless &= ~(high >= MIN_GAIN * reached.max(axis=1, keepdims=True))
    return np.select(
        [
            size == size.min(axis=1, keepdims=True),
            hopeless,
            size == following,
            slots <= reach,
        ],
        [Exploration.SMALLEST, Exploration.NOT_WORTH_IT, Exploration.NEXT, Exploration.NEAR],
        Exploration.TOO_FAR,
    )


def _largest(known: BoolArray, slots: IntArray) -> IntArray:
    """Slots of the largest configuration of which each job knows something, 0 for none."""
    largest: IntArray = np.where(known, slots, 0).max(axis=1, initial=0)
    return largest
