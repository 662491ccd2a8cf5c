"""Nodes that no job may span, because one cannot reach the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Apart:
    """Pairs of nodes that cannot talk, and nodes that can talk to no other, each with a sentence that names both ends."""

    pairs: Mapping[frozenset[str], str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    """Nodes that get jobs of a single node only."""

    def __bool__(self) -> bool:
        return bool(self.pairs or self.alone)

    def between(self, one: str, other: str) -> str:
        """Return why a job must not span both nodes; empty if it may."""
        return self.alone.get(one) or self.alone.get(other) or self.pairs.get(frozenset((one, other)), "")

    def within(self, nodes: Iterable[str], known: Collection[str] = ()) -> str:
        """Return why a job must not span these nodes; empty if it may.

        A pair of `known` nodes does not count: the job already has ranks on both, and they have met.
        """
        for one, other in combinations(nodes, 2):
            if not (one in known and other in known) and (why := self.between(one, other)):
                return why
        return ""


NOTHING_APART = Apart()
