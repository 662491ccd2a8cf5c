"""How fast a job would be on machines that it may never have run on. Pure.

Where jobs of its class were measured, on whatever kind: their model, and on other kinds that model as much faster as the
TFLOPS of the kinds compare. Where nothing was measured, a law: speed grows with the slots to the power `POWER`, and in
proportion to TFLOPS. That is a guess, and its interval says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.cluster import Measurement
from service.domain.jobs import Job, class_of
from service.domain.perf.learned import Learned, learn
from service.domain.perf.tables import goodput_table
from service.domain.perf.throughput import GUESS_SPREAD, PERCENTILE_90
from service.domain.perf.transfer import borrow
from service.domain.policies.policy import Configurations
from service.domain.rental.catalogue import tflops_of

POWER: Final = 0.85
"""Twice the slots are 1.8 times as fast, where nothing was measured."""
REFERENCE: Final = "t4"
"""The kind whose slot is the unit where no speed is known."""
_MOST_RATIO: Final = 30.0
"""No kind is taken to be faster than another by more: a job that was only seen on a CPU is bound by other things on a GPU."""


class Basis(StrEnum):
    """What a speed rests on: its class was measured on the kind; on another kind; the user has said one; nothing."""

    MEASURED = "measured"
    TRANSFERRED = "transferred"
    GIVEN = "given"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Shape:
    """Devices of a kind on a number of machines."""

    kind: str
    slots: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Samples per second: `goodput` is the median, `low` the P10. With `ASSUMED`, the unit is what a slot of `REFERENCE` does."""

    goodput: float
    low: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says of the speed: so many samples per second on one slot of a kind."""

    kind: str
    samples_per_s: float


def speeds_at(
    job: Job, measured: Sequence[Measurement], shapes: Sequence[Shape], given: Given | None = None
) -> dict[Shape, Speed]:
    """The speed of a job at each shape. `measured` is what jobs of its class have measured, on any kinds."""
    known = [one for one in measured if one.believable]
    if not known or not shapes:
        return {shape: _by_law(shape, given) for shape in shapes}
    kinds = sorted({shape.kind for shape in shapes} | {one.device_kind for one in known})
    learned = learn([job], kinds, {}, {class_of(job.spec): tuple(known)})
    tried = learned.models.throughput.slots_tried[0] > 0
    table = goodput_table(
        _across(learned, kinds).models,
        Configurations(
            kinds=tuple(kinds),
            kind=np.array([kinds.index(shape.kind) for shape in shapes], dtype=np.int64),
            slots=np.array([shape.slots for shape in shapes], dtype=np.int64),
            nodes=np.array([shape.nodes for shape in shapes], dtype=np.int64),
            usd_per_h=np.zeros(len(shapes)),
        ),
    )
    # What is left are plain samples: a larger batch takes them faster, although each is worth less.
    plain = np.where(table.efficiency[0] > 0, table.efficiency[0], 1.0)
    goodput: FloatArray = table.goodput[0] / plain
    low: FloatArray = table.low[0] / plain
    return {
        shape: Speed(
            float(goodput[index]),
            float(low[index]),
            Basis.MEASURED if tried[kinds.index(shape.kind)] else Basis.TRANSFERRED,
        )
        for index, shape in enumerate(shapes)
    }


def relative_tflops(kind: str, to: str) -> float:
    """How much faster one kind is taken to be than another; 1 where nobody says."""
    own, other = tflops_of(kind), tflops_of(to)
    if own <= 0 or other <= 0:
        return 1.0
    return min(max(own / other, 1 / _MOST_RATIO), _MOST_RATIO)


def _by_law(shape: Shape, given: Given | None) -> Speed:
    one_slot = (
        given.samples_per_s * relative_tflops(shape.kind, given.kind)
        if given is not None
        else relative_tflops(shape.kind, REFERENCE)
    )
    goodput = one_slot * shape.slots**POWER
    low = goodput * math.exp(-PERCENTILE_90 * GUESS_SPREAD)
    return Speed(goodput, low, Basis.ASSUMED if given is None else Basis.GIVEN)


def _across(learned: Learned, kinds: Sequence[str]) -> Learned:
    """Models of kinds that were never tried, from the one that was tried on most nodes, then slots."""
    models = learned.models.throughput
    tried = np.flatnonzero(models.slots_tried[0] > 0)
    if not tried.size or tried.size == len(kinds):
        return learned
    standing = models.nodes_tried[0, tried] * 1e6 + models.slots_tried[0, tried]
    source = int(tried[standing.argmax()])
    faster = np.array([[relative_tflops(kind, kinds[source]) for kind in kinds]])
    borrowed = borrow(models[:, np.full(len(kinds), source)], faster)
    throughput = models.where(models.slots_tried > 0, borrowed)
    return replace(learned, models=replace(learned.models, throughput=throughput))
