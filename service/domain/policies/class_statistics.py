"""How much work of each class of jobs arrives, learned online from submits and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.domain.arrays import FloatArray

MEMORY_S = 7 * 24 * 3600.0
"""What is this old counts for a third (1 / e) of what is new: a week, so that every hour of the week is in it."""

_FORGOTTEN = 1e-3
"""Jobs: a class that has faded to less is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLoad:
    """Faded counts of one class: jobs that arrived, jobs whose size is known, and their work in reference samples."""

    arrived: float = 0.0
    sized: float = 0.0
    samples: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatistics:
    """What is known of arrivals, by the name of a class. `observed_s` fades like the counts, so that rates are
    unbiased from the start. Numbers and names only: `dataclasses.asdict` is its JSON.
    """

    observed_s: float = 0.0
    classes: Mapping[str, ClassLoad] = field(default_factory=dict)


def observe(
    statistics: ClassStatistics,
    *,
    elapsed_s: float,
    arrived: Iterable[str] = (),
    sizes: Iterable[tuple[str, float]] = (),
    memory_s: float = MEMORY_S,
) -> ClassStatistics:
    """The statistics after `elapsed_s` more seconds.

    `arrived` has the class of every job that was submitted in them; `sizes` the class and size, in reference samples,
    of every job whose size became known: at its submit where the job says it, at its end otherwise. A size that is no
    positive number does not count.
    """
    elapsed_s = elapsed_s if math.isfinite(elapsed_s) and elapsed_s > 0 else 0.0
    fade = math.exp(-elapsed_s / memory_s)
    counts = {
        name: [fade * one.arrived, fade * one.sized, fade * one.samples]
        for name, one in statistics.classes.items()
        if fade * (one.arrived + one.sized) > _FORGOTTEN
    }
    for name in arrived:
        counts.setdefault(name, [0.0, 0.0, 0.0])[0] += 1.0
    for name, size in sizes:
        if math.isfinite(size) and size > 0:
            of_class = counts.setdefault(name, [0.0, 0.0, 0.0])
            of_class[1] += 1.0
            of_class[2] += size
    return ClassStatistics(
        observed_s=fade * statistics.observed_s + memory_s * (1.0 - fade),
        classes={name: ClassLoad(arrived=a, sized=b, samples=c) for name, (a, b, c) in counts.items()},
    )


def loads(statistics: ClassStatistics, names: Sequence[str]) -> FloatArray:
    """(I,) reference samples per second that arrive in each of these classes: arrival rate times mean size.

    NaN for a class of which no size is known yet. It is what `fixed_widths` takes.
    """
    of_class = [statistics.classes.get(name, ClassLoad()) for name in names]
    return np.array(
        [
            one.arrived / statistics.observed_s * one.samples / one.sized
            if one.sized > 0 and statistics.observed_s > 0
            else np.nan
            for one in of_class
        ]
    )
