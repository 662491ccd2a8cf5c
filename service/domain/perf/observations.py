"""Observed step times, to which throughput models are fitted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from service.domain.perf.throughput import LEAST, MOST
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_SHORTEST_S, _LONGEST_S = 1e-7, 1e6
"""Shortest and longest step time in seconds that is believed. Measurements outside are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Mean step times, as flat arrays (O,).

    Attributes:
        owner: Index of the owner, from 0.
        slots, nodes: Size on which the steps ran.
        local_batch: Samples of a slot in one pass.
        accumulation: Passes before the last, 0 for none.
        step_s: Seconds of a step.
        sync_s: Seconds of a step in synchronisation that compute did not hide; NaN where unknown.
        count: Number of steps in the mean.
    """

    owner: IntArray
    slots: FloatArray
    nodes: FloatArray
    local_batch: FloatArray
    accumulation: FloatArray
    step_s: FloatArray
    sync_s: FloatArray
    count: FloatArray

    def __getitem__(self, index: Any) -> Observations:
        """Return the observations that a numpy index selects."""
        return Observations(**{one.name: getattr(self, one.name)[index] for one in fields(self)})


def believable(one: Observations, owners: int) -> BoolArray:
    """Return the observations (O,) of these owners that can be true."""
    true = (one.owner >= 0) & (one.owner < owners)
    true &= (one.step_s >= _SHORTEST_S) & (one.step_s <= _LONGEST_S)
    true &= (one.slots <= MOST) & (one.nodes >= 1) & (one.nodes <= one.slots)
    true &= (one.local_batch >= LEAST) & (one.local_batch <= MOST)
    result: BoolArray = true & (one.accumulation >= 0) & (one.accumulation <= MOST) & (one.count >= 1)
    return result
