"""Groups of nodes that share topology labels, and the smallest group that holds all pieces of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from service.domain.allocation.placement.bins import Bins
from service.domain.allocation.placement.repack import demands

_Path: TypeAlias = tuple[str, ...]


class Domains:
    """Free blocks of groups of nodes, updated as jobs are laid out.

    `paths` has the labels of each node, smallest level first. The groups of rank 0 share all labels, those of rank 1 all but
    the first, and so on; the group of the last rank has all nodes. Ranks that divide the nodes like the rank below are
    left out.
    """

    def __init__(self, paths: Sequence[_Path], bins: Bins, sizes: int) -> None:
        self._bins = bins
        self._sizes = sizes
        self._of_node: list[list[int]] = []
        """Group of each node, by rank."""
        self._blocks: list[list[list[int]]] = []
        """Slots in free blocks of each power of two, by rank and group (see `shapes`)."""
        self._below: list[list[list[int]]] = []
        """Groups of the rank below in each group, by rank; for rank 0, nodes."""
        members: list[_Path] = list(paths)
        inner = list(range(len(paths)))
        for level in range(max(map(len, paths), default=0) + 1):
            numbers: dict[_Path, int] = {}
            groups = [numbers.setdefault(path[level:], len(numbers)) for path in members]
            if self._blocks and len(numbers) == len(self._blocks[-1]):
                continue
            below: list[dict[int, None]] = [{} for _ in numbers]
            for node, group in enumerate(groups):
                below[group][inner[node]] = None
            inner = groups
            self._of_node.append(groups)
            self._below.append([list(one) for one in below])
            self._blocks.append([[0] * sizes for _ in numbers])
        for node, room in enumerate(bins.room):
            self._add(node, 0, room)

    def changed(self, node: int, before: int) -> None:
        """Count the free slots of a node anew, which were `before`."""
        self._add(node, before, self._bins.room[node])

    def nodes_for(self, pieces: Sequence[int], own: Sequence[int], laid: Collection[int]) -> list[int]:
        """Return the nodes to take for the missing pieces of a job, those to take first at the front.

        They are those of the smallest group that holds all pieces and all nodes of `laid`, where the job has slots
        already. Of several, the group with most free nodes of `own` is taken, and then the one with the fewest free slots.
        Nodes of `own` come first, then as few smaller groups as possible. Without any group, all nodes follow in that order.
        """
        needs = demands(tuple(pieces), self._sizes)
        size = max((size for size, count in enumerate(pieces) if count), default=0)
        for rank, blocks in enumerate(self._blocks):
            groups: Iterable[int] = range(len(blocks))
            if laid:
                groups = {self._of_node[rank][node] for node in laid}
                if len(groups) > 1:
                    continue
            fitting = [one for one in groups if self._holds(blocks[one], needs)]
            if fitting:
                mine = [self._of_node[rank][node] for node in own]
                best = min(fitting, key=lambda one: (-mine.count(one), blocks[one][0], one))
                return self._ordered(rank, best, size, needs[size], own)
        return self._ordered(len(self._blocks) - 1, 0, size, needs[size], own)

    def _holds(self, blocks: Sequence[int], needs: Sequence[int]) -> bool:
        return all(has >= need for has, need in zip(blocks, needs, strict=True))

    def _ordered(self, rank: int, group: int, size: int, slots: int, own: Sequence[int]) -> list[int]:
        """Return nodes of a group that have these slots in blocks of `2^size`, in the order of `nodes_for`."""
        found = [node for node in own if self._of_node[rank][node] == group]
        known, room = set(found), self._bins.room
        left = slots - sum(room[node] >> size << size for node in found)
        for nodes in self._parts(rank, group, size, known.copy()):
            if left <= 0:
                break
            fresh = [node for node in nodes if node not in known and room[node] > 0]
            found += fresh
            left -= sum(room[node] >> size << size for node in fresh)
        return found

    def _parts(self, rank: int, group: int, size: int, own: set[int]) -> Iterator[list[int]]:
        """Yield the nodes of the groups of rank 0 in a group: those with own nodes first, then the roomiest."""
        if rank == 0:
            yield self._bins.preferred(self._below[0][group])
            return
        blocks, mine = self._blocks[rank - 1], {self._of_node[rank - 1][node] for node in own}
        for part in sorted(
            self._below[rank][group], key=lambda one: (one not in mine, -blocks[one][size], one)
        ):
            yield from self._parts(rank - 1, part, size, own)

    def _add(self, node: int, before: int, after: int) -> None:
        for groups, blocks in zip(self._of_node, self._blocks, strict=True):
            of_group = blocks[groups[node]]
            for size in range(self._sizes):
                of_group[size] += (after >> size << size) - (before >> size << size)
