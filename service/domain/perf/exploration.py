"""Rules for the configurations that a job may be given now, from the sizes it has tried. Pure; for all jobs at once.

As in Pollux (OSDI'21) and Sia (SOSP'23, section 3.3), a job starts with its smallest size on a kind and may
grow to twice the largest size that it has tried there, so that a model is trusted only near its data. The
next larger size is always open: otherwise a job of 2 or 16 slots would never leave 2. A change of kind may
keep the size, since speeds carry over between kinds. Four rules are added:

- Sizes that jobs of the same class have tried need no further trial: a job may start there and grow from
  there.
- Growth ends where even the P90 of goodput does not pay.
- Sizes beyond all that were tried are scored at the P90 (`optimistic_goodput`).
- A mix of kinds opens once one of its kinds is known, up to twice the largest size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

GROWTH: Final = 2
"""Largest multiple of the largest tried size that may be tried."""
MIN_GAIN: Final = 1.05
"""Factor by which the P90 of a larger size must exceed the measured goodput of fewer slots."""


class Exploration(IntEnum):
    """Reason why a configuration may be tried, or may not."""

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
        """Short explanation of the code for users."""
        return _REASONS[self]


_REASONS: Final = {
    Exploration.NOT_ALLOWED: "not allowed",
    Exploration.TRIED: "tried before",
    Exploration.HELD: "held now",
    Exploration.SMALLEST: "the smallest size, where a job starts",
    Exploration.NEXT: "the next size above the largest tried",
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
    """Result of `explore`.

    `mask` (J, C) marks the configurations that each job may be given now, and `code` (J, C) holds an
    `Exploration` for each.
    """

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
    """Return which of the `allowed` (J, C) configurations may be tried now.

    Args:
        configurations: The columns.
        allowed: Configurations that the jobs' specs and the cluster allow. A job with a fixed size has only that size
            here. If no smaller size is allowed, it counts as the smallest.
        tried: True where a job has measurements (J, C).
        alike: True where jobs of its class have measurements (J, C).
        current: Column that a job holds (J,), -1 for none. It is always open to the job.
        goodput: P50 of the goodput (J, C). Where a size was tried, it is close to the measurements.
        high: P90 of the goodput (J, C).
    """
    slots = configurations.slots
    code = np.full(allowed.shape, int(Exploration.TOO_FAR), np.int8)
    known = tried | alike
    largest_anywhere = _largest(known, slots)
    for of_kind in _columns_by_kind(configurations):
        # Columns by ascending size, so that fewer slots come first.
        columns = of_kind[np.argsort(slots[of_kind], kind="stable")]
        if columns.size:
            code[:, columns] = _of_kind(
                slots[columns],
                allowed=allowed[:, columns],
                known=known[:, columns],
                largest_anywhere=largest_anywhere,
                goodput=goodput[:, columns],
                high=high[:, columns],
            )
    for column in np.flatnonzero(configurations.mixed):
        rows = np.flatnonzero(allowed[:, column])
        code[rows, column] = _of_mixed(
            configurations,
            int(column),
            allowed=allowed[rows],
            known=known[rows],
            goodput=goodput[rows],
            high=high[rows],
        )
    holders = np.flatnonzero(current >= 0)
    code[holders, current[holders]] = Exploration.HELD
    code[alike] = Exploration.ALIKE
    code[tried] = Exploration.TRIED
    code[~allowed] = Exploration.NOT_ALLOWED
    return Explored(mask=np.isin(code, _OPEN), code=code.astype(np.int64))


def credible(
    configurations: Configurations,
    *,
    goodput: FloatArray,
    low: FloatArray,
    high: FloatArray,
    known: BoolArray,
) -> FloatArray:
    """Return P90 (J, C), bounded by what the speedup at known sizes allows for larger ones.

    Speedups are concave in slots: another slot adds no more than the one before. The bound therefore continues, from
    the largest known size of a kind, with the gain per slot between its two largest known sizes. That gain is taken at
    its most optimistic: from P10 of the smaller size to P90 of the larger one.
    """
    slots = configurations.slots
    bounded = high.copy()
    for columns in _columns_by_kind(configurations):
        size = np.where(known[:, columns], slots[columns], 0)
        if not columns.size:
            continue
        rows = np.arange(len(size))
        last = size.argmax(axis=1)
        largest = size[rows, last]
        before = np.where(size < largest[:, None], size, 0)
        second = before.argmax(axis=1)
        smaller = before[rows, second]
        reached = np.fmax(goodput[rows, columns[last]], high[rows, columns[last]])
        start = np.where(smaller > 0, low[rows, columns[second]], 0.0)
        gain = np.maximum(reached - start, 0.0) / np.maximum(largest - smaller, 1)
        most = reached[:, None] + gain[:, None] * (slots[columns] - largest[:, None])
        beyond = (largest > 0)[:, None] & (slots[columns] > largest[:, None])
        bounded[:, columns] = np.where(beyond, np.fmin(bounded[:, columns], most), bounded[:, columns])
    return bounded


def optimistic_goodput(
    configurations: Configurations, goodput: FloatArray, high: FloatArray, known: BoolArray
) -> FloatArray:
    """Return the goodput (J, C) that decisions use: P50 (`goodput`), but P90 (`high`) beyond the `known`
    sizes of a kind.

    A size is known by measurements of the job or of its class. Scored at the median, a size whose median is
    too low would never be tried (optimism in the face of uncertainty: Lai and Robbins, 1985). A job whose
    changes cost much would also grow too slowly: the next size is worth more than its own gain, since it
    opens the size after it. For a job without any measurements, all configurations are scored at the median, as
    are mixed ones always: they are predicted from their kinds, and open no other size.
    """
    slots = configurations.slots
    beyond = np.zeros_like(known)
    for columns in _columns_by_kind(configurations):
        beyond[:, columns] = slots[columns] > _largest(known[:, columns], slots[columns])[:, None]
    return np.where(beyond & known.any(axis=1, keepdims=True), np.fmax(goodput, high), goodput)


def _columns_by_kind(configurations: Configurations) -> list[IntArray]:
    """Return the columns of each kind, without mixed ones."""
    kind = np.where(configurations.mixed, -1, configurations.kind)
    return [np.flatnonzero(kind == index) for index in range(len(configurations.kinds))]


def _of_mixed(
    configurations: Configurations,
    column: int,
    *,
    allowed: BoolArray,
    known: BoolArray,
    goodput: FloatArray,
    high: FloatArray,
) -> IntArray:
    """Return the codes (j,) of a mixed column for jobs that may have it.

    The prediction for a mix rests on its kinds. Therefore one of them must be known, and the mix may have
    `GROWTH` times the largest known size. A job that fits on no kind alone starts with its smallest mix.
    """
    assert configurations.parts is not None
    slots, parts = configurations.slots, configurations.parts
    largest = _largest(known, slots)
    of_its_kinds = (parts[:, parts[column] > 0] > 0).any(axis=1)
    within = np.flatnonzero((parts <= parts[column]).all(axis=1) & (slots < slots[column]))
    reached = np.where(known[:, within] & np.isfinite(goodput[:, within]), goodput[:, within], 0.0)
    hopeless = ~(high[:, column] >= MIN_GAIN * reached.max(axis=1, initial=0.0))
    far = ~known[:, of_its_kinds].any(axis=1) | (slots[column] > GROWTH * largest)
    smallest = np.where(allowed, slots, np.iinfo(np.int64).max).min(axis=1)
    first = ~allowed[:, ~configurations.mixed].any(axis=1) & (slots[column] == smallest)
    return np.select(
        [first, far, hopeless],
        [Exploration.SMALLEST, Exploration.TOO_FAR, Exploration.NOT_WORTH_IT],
        Exploration.NEAR,
    )


def _of_kind(
    slots: IntArray,
    *,
    allowed: BoolArray,
    known: BoolArray,
    largest_anywhere: IntArray,
    goodput: FloatArray,
    high: FloatArray,
) -> IntArray:
    """Return the codes of the columns of one kind, by ascending slots, as far as they follow from the kind's sizes."""
    largest = _largest(known, slots)
    size = np.where(allowed, slots, np.iinfo(np.int64).max)
    following = np.where(size > largest[:, None], size, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    reach = np.maximum(GROWTH * largest, largest_anywhere)[:, None]
    reached = np.where(known & np.isfinite(goodput), goodput, 0.0)
    # The comparison is false for NaN, which promises nothing.
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
    """Return the slots of the largest known configuration of each job, 0 for none."""
    largest: IntArray = np.where(known, slots, 0).max(axis=1, initial=0)
    return largest
