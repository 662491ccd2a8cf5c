"""Events of nodes: random failures, and spot capacity according to a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.domain.shared.arrays import BoolArray, FloatArray
from service.simulation.model.spot import changes_of
from service.simulation.model.world import ClusterRules, Kind


@dataclass(frozen=True, slots=True, order=True)
class NodeEvent:
    """Departure or return of a node. `failed`: it leaves without notice, so work since the last checkpoint is lost.

    `every_s` is the period after which the event repeats: infinite if it never does, 0 if the next event is
    random.
    """

    at_s: float
    node: int
    leaves: bool
    failed: bool = False
    every_s: float = 0.0

    def then(self, random: np.random.Generator, rules: ClusterRules) -> Iterator[NodeEvent]:
        """Yield the event that follows this one."""
        if self.every_s > 0:
            yield replace(self, at_s=self.at_s + self.every_s)
        elif self.leaves:
            yield replace(self, at_s=self.at_s + rules.repair_s, leaves=False)
        else:
            works_s = float(random.exponential(3600.0 / rules.failures_per_node_h))
            yield replace(self, at_s=self.at_s + works_s, leaves=True)


def failures_of(rules: ClusterRules, nodes: int, random: np.random.Generator) -> Iterator[NodeEvent]:
    """Yield the first failure of each node. Times between failures are exponential."""
    if rules.failures_per_node_h > 0:
        first_s: FloatArray = random.exponential(3600.0 / rules.failures_per_node_h, nodes)
        for node, at_s in enumerate(first_s.tolist()):
            yield NodeEvent(at_s, node, leaves=True, failed=True)


def spot_events(kinds: Sequence[Kind]) -> Iterator[NodeEvent]:
    """Yield the events of the spot nodes of all kinds in the first pass of their traces. Each repeats with its trace."""
    first = 0
    for kind in kinds:
        first += len(kind.node_slots)
        if kind.spot is None or not kind.spot_nodes:
            continue
        length_s, at_s, counts = changes_of(kind.spot, kind.spot_nodes)
        for index in range(kind.spot_nodes):
            yield from _of_node(first - 1 - index, counts > index, at_s, length_s)


def _of_node(node: int, present: BoolArray, at_s: FloatArray, length_s: float) -> Iterator[NodeEvent]:
    """Yield the events of one node, given its presence from each of these times (T,) on, the first of which is 0."""
    if not present[0]:
        yield NodeEvent(0.0, node, leaves=True, every_s=math.inf)
    changes = present != np.roll(present, 1)
    for time_s, now in zip(at_s[changes].tolist(), present[changes].tolist(), strict=True):
        yield NodeEvent(time_s if time_s > 0 else length_s, node, leaves=not now, every_s=length_s)
