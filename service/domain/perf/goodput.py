"""Goodput of a job at each size, from what was measured.

Goodput is throughput times statistical efficiency (Pollux, OSDI'21, section 3). Where the global batch is fixed,
efficiency is the same at every size and cancels; where it is not, `batch.in_goodput` has applied it. What remains is
throughput: measured where the job has run, interpolated between, and a cautious prior beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.domain.cluster import Measurement

PRIOR_EXPONENT = 0.9
"""Throughput is taken to grow like slots ** 0.9 where nothing was measured: a little less than
linear, so that growing is tried, and given up when the measurement disappoints."""
EXPLORE_FACTOR = 2
"""A size is tried only up to this multiple of the largest size measured (Sia, SOSP'23, section 3.3); the
next larger size is always tried, else a job of 2 or 16 slots would never leave 2."""
_SLOWEST, _FASTEST = 1e-9, 1e15
"""Samples per second that can be true. Scripts report what they like, and one absurd number must not
make the arithmetic of everybody's round overflow."""


@dataclass(frozen=True, slots=True)
class SizeGoodput:
    """What is expected of one size. `speedup` is against one slot of the same device kind."""

    slots: int
    goodput_samples_per_s: float | None
    speedup: float
    measured: bool


def throughput_by_size(measurements: Iterable[Measurement], device_kind: str) -> dict[int, float]:
    """Samples per second by slots on one device kind, several measurements weighted by steps. Where a job has trained
    with several batches at a size, the best of them counts.

    Measurements that cannot be true are left out.
    """
    weighted: dict[tuple[int, int], float] = {}
    weights: dict[tuple[int, int], int] = {}
    for one in measurements:
        if one.device_kind == device_kind and believable(one):
            key = (one.slots, one.global_batch)
            weighted[key] = weighted.get(key, 0.0) + one.samples_per_s * one.steps
            weights[key] = weights.get(key, 0) + one.steps
    best: dict[int, float] = {}
    for slots, batch in sorted(weighted):
        mean = weighted[slots, batch] / weights[slots, batch]
        best[slots] = max(mean, best.get(slots, 0.0))
    return best


def believable(measurement: Measurement) -> bool:
    """Whether a measurement can be true."""
    return _SLOWEST <= measurement.samples_per_s <= _FASTEST and measurement.steps > 0


def predict(measured: Mapping[int, float], slots: int) -> float | None:
    """Samples per second at `slots`, or None when nothing was measured.

    Between two measured sizes the curve is a power law through both; outside them it follows the
    prior from the nearest one.
    """
    if not measured:
        return None
    below = max((size for size in measured if size <= slots), default=None)
    above = min((size for size in measured if size >= slots), default=None)
    if below is not None and above is not None and below != above:
        exponent = math.log(measured[above] / measured[below]) / math.log(above / below)
        return measured[below] * math.pow(slots / below, exponent)
    nearest = below if below is not None else above
    assert nearest is not None
    return measured[nearest] * math.pow(slots / nearest, PRIOR_EXPONENT)


def goodput_table(
    measurements: Sequence[Measurement], device_kind: str, sizes: Sequence[int]
) -> list[SizeGoodput]:
    """Expected goodput of every size in `sizes` (slots), in their order."""
    measured = throughput_by_size(measurements, device_kind)
    one_slot = predict(measured, 1)
    table = []
    for slots in sizes:
        goodput = predict(measured, slots)
        speedup = (
            goodput / one_slot if goodput is not None and one_slot is not None else slots**PRIOR_EXPONENT
        )
        table.append(SizeGoodput(slots, goodput, speedup, slots in measured))
    return table


def worth_exploring(
    measurements: Sequence[Measurement], device_kind: str, sizes: Sequence[int]
) -> tuple[int, ...]:
    """The sizes that may be tried now: the smallest, at most twice the largest measured, and the next one."""
    largest = max(throughput_by_size(measurements, device_kind), default=0)
    following = min((size for size in sizes if size > largest), default=0)
    always = {min(sizes, default=0), following}
    return tuple(size for size in sizes if size in always or size <= EXPLORE_FACTOR * largest)
