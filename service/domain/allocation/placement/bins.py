"""Nodes of a kind indexed by their free slots, for best-fit and worst-fit lookups without a search."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

_QUIET, _CROWDED, _RESERVED = range(3)
"""Classes of nodes: open to all jobs; with a part of a job that spans several nodes; with slots that some job
would keep.
"""
_FOR_SPANNING = ((_QUIET,), (_RESERVED,), (_CROWDED,))
_FOR_OTHERS = ((_CROWDED, _QUIET), (_RESERVED,))


class Bins:
    """Free slots of nodes, updated as jobs are laid out. Among equal nodes the first is returned.

    `spans` in the methods states that a job has parts on several nodes. Such jobs avoid sharing a node with
    one another; other jobs leave quiet nodes to them.
    """

    def __init__(self, room: Sequence[int]) -> None:
        self.room = list(room)
        self._crowded = [False] * len(room)
        self._reserved = [0] * len(room)
        self._class = [_QUIET] * len(room)
        # Per class: free slots -> nodes, including stale entries; free slots -> number of nodes; and a mask
        # with bit r set if some node has r free slots.
        self._heaps: tuple[dict[int, list[int]], ...] = ({}, {}, {})
        self._counts: tuple[dict[int, int], ...] = ({}, {}, {})
        self._masks = [0, 0, 0]
        for node in range(len(room)):
            self._put(node)

    def take(self, node: int, slots: int, *, spans: bool) -> None:
        """Take slots of a node, or return them if `slots` is negative."""
        self._lift(node)
        self.room[node] -= slots
        self._crowded[node] |= spans
        self._put(node)

    def reserve(self, nodes: Iterable[int], change: int) -> None:
        """Make other jobs take these nodes last (+1), or lift that restriction (-1)."""
        for node in nodes:
            self._lift(node)
            self._reserved[node] += change
            self._put(node)

    def tightest(self, slots: int, *, spans: bool) -> int | None:
        """Return the node with the fewest free slots among those with at least `slots` (best fit)."""
        for classes in _FOR_SPANNING if spans else _FOR_OTHERS:
            rooms = self._rooms(classes) >> slots
            if rooms:
                return self._first(classes, slots + (rooms & -rooms).bit_length() - 1)
        return None

    def roomiest(self, slots: int, *, spans: bool) -> int | None:
        """Return the node with the most free slots if it has at least `slots` (worst fit)."""
        for classes in _FOR_SPANNING if spans else _FOR_OTHERS:
            rooms = self._rooms(classes)
            if rooms >> slots:
                return self._first(classes, rooms.bit_length() - 1)
        return None

    def preferred(self, nodes: Iterable[int]) -> list[int]:
        """Return nodes in the order in which a job on several of them takes them: quiet ones, then the roomiest."""
        order = {_QUIET: 0, _RESERVED: 1, _CROWDED: 2}
        return sorted(nodes, key=lambda node: (order[self._class[node]], -self.room[node], node))

    def _rooms(self, classes: tuple[int, ...]) -> int:
        rooms = 0
        for one in classes:
            rooms |= self._masks[one]
        return rooms

    def _first(self, classes: tuple[int, ...], room: int) -> int:
        one = next(one for one in classes if self._masks[one] >> room & 1)
        heap = self._heaps[one][room]
        while self.room[heap[0]] != room or self._class[heap[0]] != one:
            heapq.heappop(heap)
        return heap[0]

    def _lift(self, node: int) -> None:
        one, room = self._class[node], self.room[node]
        self._counts[one][room] -= 1
        if not self._counts[one][room]:
            self._masks[one] ^= 1 << room

    def _put(self, node: int) -> None:
        room = self.room[node]
        one = _RESERVED if self._reserved[node] else _CROWDED if self._crowded[node] else _QUIET
        self._class[node] = one
        heapq.heappush(self._heaps[one].setdefault(room, []), node)
        self._counts[one][room] = self._counts[one].get(room, 0) + 1
        self._masks[one] |= 1 << room
