"""When nodes come and go: failures at a rate, and spot capacity as a trace has it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.domain.arrays import BoolArray, FloatArray
from service.simulation.spot import changes_of
from service.simulation.world import Kind, Rules


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """A node leaves or comes back at a time. `failed`: without notice, so that work since the last checkpoint is lost.

    `every_s`: after how long the same happens again, infinite for never; 0: what comes then is left to chance.
    """

    at_s: float
    node: int
    leaves: bool
    failed: bool = False
    every_s: float = 0.0

    def then(self, random: np.random.Generator, rules: Rules) -> Iterator[Event]:
        """What follows from it."""
        if self.every_s > 0:
            yield replace(self, at_s=self.at_s + self.every_s)
        elif self.leaves:
            yield replace(self, at_s=self.at_s + rules.repair_s, leaves=False)
        else:
            works_s = float(random.exponential(3600.0 / rules.failures_per_node_h))
            yield replace(self, at_s=self.at_s + works_s, leaves=True)


def failures_of(rules: Rules, nodes: int, random: np.random.Generator) -> Iterator[Event]:
    """The first failure of each node: times between failures are exponential."""
    if rules.failures_per_node_h > 0:
        first_s: FloatArray = random.exponential(3600.0 / rules.failures_per_node_h, nodes)
        for node, at_s in enumerate(first_s.tolist()):
            yield Event(at_s, node, leaves=True, failed=True)


def spot_events(kinds: Sequence[Kind]) -> Iterator[Event]:
    """How the spot nodes of all kinds come and go, in the first run of their traces; each is repeated with the trace."""
    first = 0
    for kind in kinds:
        first += len(kind.node_slots)
        if kind.spot is None or not kind.spot_nodes:
            continue
        length_s, at_s, counts = changes_of(kind.spot, kind.spot_nodes)
        for index in range(kind.spot_nodes):
            yield from _of_node(first - 1 - index, counts > index, at_s, length_s)


def _of_node(node: int, there: BoolArray, at_s: FloatArray, length_s: float) -> Iterator[Event]:
    """The events of one node, which is there or not from each of these times (T,) on, the first of which is 0."""
    if not there[0]:
        yield Event(0.0, node, leaves=True, every_s=math.inf)
    changes = there != np.roll(there, 1)
    for time_s, now in zip(at_s[changes].tolist(), there[changes].tolist(), strict=True):
        yield Event(time_s if time_s > 0 else length_s, node, leaves=not now, every_s=length_s)
