"""Predicted speed of a job on machines that it may never have used. Pure.

If jobs of its class were measured on any kind, their model is used. On other kinds, the model is scaled by
the ratio of the kinds' TFLOPS. Without a measurement, a power law applies: speed grows with the slots to the
power `POWER`, and in proportion to TFLOPS. That is a guess with a wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.jobs.work import worth_of_work
from service.domain.perf.learned import LearnedModels, learn
from service.domain.perf.tables import goodput_table
from service.domain.perf.throughput import GUESS_SPREAD, PERCENTILE_90
from service.domain.perf.transfer import borrow
from service.domain.policies.framework.policy import Configurations
from service.domain.rental.catalogue import tflops_of
from service.domain.shared.arrays import FloatArray

POWER: Final = 0.85
"""Exponent of speed over slots without measurements: twice the slots are 1.8 times as fast."""
REFERENCE: Final = "t4"
"""Device kind whose slot is the unit where no speed is known."""
_MOST_RATIO: Final = 30.0
"""Largest ratio between the speeds of two kinds. A job measured only on a CPU has other bottlenecks on a GPU."""


class Basis(StrEnum):
    """Basis of a speed: measurements of the class on the kind or on another kind, a figure of the user, or an
    assumption.
    """

    MEASURED = "measured"
    TRANSFERRED = "transferred"
    GIVEN = "given"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of devices of a kind, and of the machines that hold them."""

    kind: str
    slots: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """Samples per second: `goodput` is the median, `low` the P10. With `ASSUMED`, the unit is the speed of a
    `REFERENCE` slot.
    """

    goodput: float
    low: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class Given:
    """Speed given by the user, in samples per second on one slot of a kind."""

    kind: str
    samples_per_s: float


def speeds_at(
    job: Job, measured: Sequence[Measurement], shapes: Sequence[Shape], given: Given | None = None
) -> dict[Shape, ExpectedSpeed]:
    """Return the speed of a job at each shape. `measured` are the measurements of jobs of its class, on any kinds."""
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
    # The remaining work may be in plain samples. A larger batch processes them faster, although each makes less
    # progress.
    plain = worth_of_work(job, table.efficiency[0], table.counted[0])
    goodput: FloatArray = table.goodput[0] / plain
    low: FloatArray = table.low[0] / plain
    return {
        shape: ExpectedSpeed(
            float(goodput[index]),
            float(low[index]),
            Basis.MEASURED if tried[kinds.index(shape.kind)] else Basis.TRANSFERRED,
        )
        for index, shape in enumerate(shapes)
    }


def relative_tflops(kind: str, to: str) -> float:
    """Return the assumed ratio of the speeds of two kinds, 1 if one of them is unknown."""
    own, other = tflops_of(kind), tflops_of(to)
    if own <= 0 or other <= 0:
        return 1.0
    return min(max(own / other, 1 / _MOST_RATIO), _MOST_RATIO)


def _by_law(shape: Shape, given: Given | None) -> ExpectedSpeed:
    one_slot = (
        given.samples_per_s * relative_tflops(shape.kind, given.kind)
        if given is not None
        else relative_tflops(shape.kind, REFERENCE)
    )
    goodput = one_slot * shape.slots**POWER
    low = goodput * math.exp(-PERCENTILE_90 * GUESS_SPREAD)
    return ExpectedSpeed(goodput, low, Basis.ASSUMED if given is None else Basis.GIVEN)


def _across(learned: LearnedModels, kinds: Sequence[str]) -> LearnedModels:
    """Return models of untried kinds, borrowed from the kind that was tried on most nodes, then on most slots."""
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
