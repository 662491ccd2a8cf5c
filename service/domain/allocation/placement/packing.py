"""Bin packing: the number of slots of each node that each job gets, so that all fit and few jobs move.

The layout keeps one invariant. With `r_n` the slots that node `n` can still grant, all pieces that are still
to be laid out fit if and only if for every level `k` (see `shapes`)

    slack[k] = sum over n of floor(r_n / 2^k) * 2^k  -  sum of the pieces of at least 2^k  >=  0.

Jobs that may stay keep their slots at first. While a slack is negative, the jobs whose departure restores it
most cheaply lose their slots. The other jobs are laid out, the largest pieces first; a piece on any node
leaves the slacks of its level and below as they are. Deviations from that order, such as three slots on one
node at once, are made only if no slack becomes negative.

Any node may therefore take a piece in that order. Where nodes have topology labels, those of the smallest group of nodes
that holds all pieces of a job come first (`domains`).
"""

from __future__ import annotations

from collections.abc import Sequence

from service.domain.allocation.configurations.shapes import pieces_of
from service.domain.allocation.placement.bins import Bins
from service.domain.allocation.placement.domains import Domains
from service.domain.allocation.placement.repack import PartialPlacement, SlotDemand, demands


def lay_out(
    claims: Sequence[SlotDemand],
    room: Sequence[int],
    node_slots: int,
    paths: Sequence[tuple[str, ...]] = (),
) -> None:
    """Set `laid` of every claim, earlier claims first.

    `room` is the number of slots that each node can grant, including the claims' own; `node_slots` is the
    size of a whole node. `paths` are the topology labels of each node, smallest level first; empty without any.
    """
    top = node_slots.bit_length() - 1
    partial = PartialPlacement(claims, room, top)
    partial.make_room()
    bins = Bins(partial.room)
    domains = Domains(paths, bins, top + 1) if paths else None
    todo: list[list[_Layout]] = [[] for _ in range(top + 1)]
    for claim in claims:
        if len(claim.laid) > 1:
            for node in claim.laid:
                bins.take(node, 0, spans=True)
        elif claim.slots > 0 and not claim.laid:
            bins.reserve(claim.own, +1)
            layout = _Layout(claim, bins, partial.slack, node_slots, domains)
            todo[layout.level].append(layout)
    for level in range(top, -1, -1):
        for layout in sorted(todo[level], key=_Layout.turn):
            layout.place()
            if layout.rest:
                todo[layout.level].append(layout)


class _Layout:
    """A job that is being laid out, level by level. `rest` slots, cut into `_pieces`, are still missing."""

    __slots__ = ("_bins", "_claim", "_domains", "_pieces", "_reserves", "_slack", "_spans", "_whole", "rest")

    def __init__(
        self, claim: SlotDemand, bins: Bins, slack: list[int], node_slots: int, domains: Domains | None
    ) -> None:
        self.rest = claim.slots
        self._claim = claim
        self._pieces = list(claim.pieces)
        self._bins = bins
        self._domains = domains
        self._slack = slack
        self._spans = claim.slots > node_slots
        self._whole = pieces_of(node_slots, node_slots, 1 << (node_slots.bit_length() - 1))  # a node's pieces
        self._reserves = True

    @property
    def level(self) -> int:
        """Level of the largest missing piece."""
        level = len(self._pieces) - 1
        while not self._pieces[level]:
            level -= 1
        return level

    def turn(self) -> tuple[bool, int]:
        """Return the sort key: jobs that hold slots come first, so that they find them free; then the largest."""
        return (not self._claim.own, -self.rest)

    def place(self) -> None:
        """Lay out all pieces of the present level, and smaller pieces with them if that is safe."""
        if self._reserves:
            self._bins.reserve(self._claim.own, -1)
            self._reserves = False
        level, room = self.level, self._bins.room
        near = self._near()
        if self._domains is not None:
            if not self._claim.laid and self._finish(near):
                return
            near = self._domains.nodes_for(self._pieces, near, self._claim.laid)
        at = 0
        while self._pieces[level] and not self._finish(near):
            if self._take_whole_node(near):
                continue
            while at < len(near) and room[near[at]] >> level == 0:
                at += 1
            if at < len(near):
                node = near[at]
            else:
                find = self._bins.tightest if self._pieces[level] == 1 else self._bins.roomiest
                found = find(1 << level, spans=self._spans)
                if found is None:
                    self._give_up()
                    return
                node = found
            count = min(self._pieces[level], room[node] >> level)
            self._take(node, [*[0] * level, count])

    def _near(self) -> list[int]:
        """Return the nodes with free slots where the job is already."""
        room, own = self._bins.room, self._claim.own
        near = [node for node in {**own, **self._claim.laid} if room[node] > 0]
        if len(near) > 1:
            near.sort(key=lambda node: (-min(own.get(node, 0), self.rest), room[node], node))
        return near

    def _finish(self, near: Sequence[int]) -> bool:
        """Put everything that is missing on one node, if one has enough slots and all other jobs still fit."""
        tightest = self._bins.tightest(self.rest, spans=self._spans)
        if tightest is None:
            return False
        fitting = [node for node in near if self._bins.room[node] >= self.rest]
        if self._domains is not None and self._claim.laid:
            if not fitting:
                return False  # the rest of the job lies in the group that it began in
            tightest = min(fitting, key=self._bins.room.__getitem__)
        preferred = fitting[0] if fitting else tightest
        return self._take_if_safe(preferred, self._pieces) or (
            preferred != tightest and self._take_if_safe(tightest, self._pieces)
        )

    def _take_whole_node(self, near: Sequence[int]) -> bool:
        """Take a whole node at once if its size is not a power of two, so that its pieces lie together."""
        apart = len(self._pieces) == len(self._whole) and sum(self._whole) > 1
        if not apart or any(has < needs for has, needs in zip(self._pieces, self._whole, strict=True)):
            return False
        slots = demands(self._whole, 1)[0]
        tightest = self._bins.tightest(slots, spans=self._spans)
        if tightest is None:
            return False
        node = next((node for node in near if self._bins.room[node] >= slots), tightest)
        return self._take_if_safe(node, self._whole)

    def _take_if_safe(self, node: int, pieces: Sequence[int]) -> bool:
        """Take pieces on one node, unless other jobs would then no longer fit."""
        before, slack = self._bins.room[node], self._slack
        needs = demands(tuple(pieces), self.level + 1)
        after = before - needs[0]
        costs = [
            (before >> level << level) - (after >> level << level) - slots
            for level, slots in enumerate(needs)
        ]
        for level, cost in enumerate(costs):
            if cost > 0 and cost > slack[level]:
                return False
        for level, cost in enumerate(costs):
            slack[level] -= cost
        self._take(node, pieces)
        return True

    def _take(self, node: int, pieces: Sequence[int]) -> None:
        slots = sum(count << level for level, count in enumerate(pieces))
        for level, count in enumerate(pieces):
            self._pieces[level] -= count
        self.rest -= slots
        self._spans = self._spans or self.rest > 0
        before = self._bins.room[node]
        self._bins.take(node, slots, spans=self._spans)
        if self._domains is not None:
            self._domains.changed(node, before)
        self._claim.laid[node] = self._claim.laid.get(node, 0) + slots

    def _give_up(self) -> None:
        for node, slots in self._claim.laid.items():
            before = self._bins.room[node]
            self._bins.take(node, -slots, spans=False)
            if self._domains is not None:
                self._domains.changed(node, before)
        self._claim.laid.clear()
        self.rest = 0
