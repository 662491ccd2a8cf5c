"""Repacking: all jobs that can keep their slots do, and as few as possible leave them to make space."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import TypeAlias

_Plan: TypeAlias = tuple[int, int, int, list[int]]
"""Plan to free a block: its cost, the slots of the jobs that leave, the node, and these jobs."""


@dataclass(slots=True, kw_only=True)
class SlotDemand:
    """A job and the number of slots of a kind that it is to get. Nodes are numbers here.

    `pieces` has the number of pieces of each power of two, from 1 on. `own` is what the job holds; `stays` is
    True if that is exactly what it is to get. `laid` is the result. It is empty if more was chosen than the
    rows of `shapes` admit. `slow` are the nodes whose link is slow.
    """

    slots: int
    pieces: tuple[int, ...]
    own: Mapping[int, int]
    stays: bool
    laid: dict[int, int] = field(default_factory=dict)
    slow: Collection[int] = ()


@lru_cache(maxsize=1 << 16)
def demands(pieces: tuple[int, ...], levels: int) -> tuple[int, ...]:
    """Return the slots in pieces of at least 1, 2, 4, ..., by level."""
    slots = [count << level for level, count in enumerate(pieces)]
    return tuple(sum(slots[level:]) for level in range(levels))


class PartialPlacement:
    """Jobs that keep all or part of their slots, and the remaining capacity of the nodes.

    `room` is the number of free slots on each node, `slack` as defined in `packing`.
    """

    def __init__(self, claims: Sequence[SlotDemand], room: Sequence[int], top: int) -> None:
        self.room = list(room)
        self._claims = claims
        self._residents: list[dict[int, int]] = [{} for _ in room]
        for index, claim in enumerate(claims):
            claim.laid = dict(claim.own) if claim.stays else _shrunk(claim)
            for node, slots in claim.laid.items():
                self.room[node] -= slots
                self._residents[node][index] = slots
        missing = Counter(demands(claim.pieces, top + 1) for claim in claims if not claim.laid)
        self.slack = [
            sum(slots >> level << level for slots in self.room)
            - sum(count * needs[level] for needs, count in missing.items())
            for level in range(top + 1)
        ]

    def make_room(self) -> None:
        """Remove jobs from their slots until all others fit. Jobs whose removal proves needless return."""
        if min(self.slack) >= 0:
            return
        removed: list[tuple[int, dict[int, int]]] = []
        unaligned = [
            index for index, claim in enumerate(self._claims) if _is_unaligned(claim, len(self.slack))
        ]
        while short := [level for level, slack in enumerate(self.slack) if slack < 0]:
            if self._free_blocks(short[-1], removed):
                continue
            unaligned = [index for index in unaligned if self._claims[index].laid]
            if not unaligned:
                break  # more was chosen than the rows admit
            self._leave(unaligned.pop(), removed)
        removed.reverse()
        for index, layout in sorted(removed, key=lambda one: not self._claims[one[0]].stays):
            self._return(index, layout)

    def _free_blocks(self, level: int, removed: list[tuple[int, dict[int, int]]]) -> bool:
        """Free blocks of `2^level` where it is cheapest until the slack is restored. Return True on success."""
        plans = [plan for node in range(len(self.room)) if (plan := self._plan(node, level))]
        heapq.heapify(plans)
        while self.slack[level] < 0 and plans:
            plan = heapq.heappop(plans)
            now = self._plan(plan[2], level)
            if now == plan:
                nodes = {node: None for index in plan[3] for node in self._claims[index].laid}
                for index in plan[3]:
                    self._leave(index, removed)
                for node in nodes:
                    if again := self._plan(node, level):
                        heapq.heappush(plans, again)
        return self.slack[level] >= 0

    def _plan(self, node: int, level: int) -> _Plan | None:
        """Return the fewest and smallest jobs that must leave a node for one more block of `2^level`; None if
        impossible.

        Whole blocks within a job's slots do not count: the job needs them elsewhere.
        """
        block = (1 << level) - 1
        need = block + 1 - (self.room[node] & block)
        spare = [
            (self._claims[index].stays, slots & block, index)
            for index, slots in self._residents[node].items()
            if slots & block
        ]
        if sum(slots for _, slots, _ in spare) < need:
            return None
        leaving: list[int] = []
        while need > 0:
            enough = [one for one in spare if one[1] >= need]
            one = min(enough) if enough else max(spare, key=itemgetter(1, 2))
            spare.remove(one)
            need -= one[1]
            leaving.append(one[2])
        cost = sum(2 if self._claims[index].stays else 1 for index in leaving)
        return cost, sum(self._claims[index].slots for index in leaving), node, leaving

    def _leave(self, index: int, removed: list[tuple[int, dict[int, int]]]) -> None:
        claim = self._claims[index]
        removed.append((index, claim.laid))
        self._change(claim, claim.laid, -1)
        for node in claim.laid:
            del self._residents[node][index]
        claim.laid = {}

    def _return(self, index: int, layout: dict[int, int]) -> None:
        """Return a job to its slots if they are still free and all other jobs still fit."""
        claim = self._claims[index]
        if any(self.room[node] < slots for node, slots in layout.items()):
            return
        self._change(claim, layout, +1)
        if min(self.slack) < 0:
            self._change(claim, layout, -1)
        else:
            claim.laid = layout

    def _change(self, claim: SlotDemand, layout: Mapping[int, int], sign: int) -> None:
        for node, slots in layout.items():
            before, after = self.room[node], self.room[node] - sign * slots
            self.room[node] = after
            for level in range(len(self.slack)):
                self.slack[level] += (after >> level << level) - (before >> level << level)
        for level, slots in enumerate(demands(claim.pieces, len(self.slack))):
            self.slack[level] += sign * slots


def _shrunk(claim: SlotDemand) -> dict[int, int]:
    """Return the slots that a shrinking job keeps: on the fewest nodes, the last one the smallest that
    suffices, and none behind a slow link if the others are enough.

    The result is empty if these slots would not lie in the promised pieces.
    """
    layout: dict[int, int] = {}
    if not 0 < claim.slots < sum(claim.own.values()):
        return layout
    rest = claim.slots
    well = {node: slots for node, slots in claim.own.items() if node not in claim.slow}
    own = well if sum(well.values()) >= rest else claim.own
    held = sorted(own.items(), key=lambda one: (one[1], one[0]))
    while rest:
        node, slots = next((one for one in held if one[1] >= rest), held[-1])
        held.remove((node, slots))
        layout[node] = min(slots, rest)
        rest -= layout[node]
    needs = demands(claim.pieces, len(claim.pieces))
    return layout if all(_in_blocks(layout, level) >= slots for level, slots in enumerate(needs)) else {}


def _is_unaligned(claim: SlotDemand, levels: int) -> bool:
    """Return True if a job's slots hold more, or fewer, whole blocks than its pieces need elsewhere."""
    needs = demands(claim.pieces, levels) if claim.laid else ()
    return any(_in_blocks(claim.laid, level) != slots for level, slots in enumerate(needs))


def _in_blocks(layout: Mapping[int, int], level: int) -> int:
    return sum(slots >> level << level for slots in layout.values())
