"""Numbers of the ranks of a sharded job after a change, and the ranks that leave, such that the fewest bytes move. Pure.

A rank holds an interval of each parameter in the dimension that FSDP divides. The share that a survivor keeps is the
overlap of its old interval with its new one. A parameter counts as long as the product of both numbers of parts, so that
intervals are whole numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from headway.contract.values.meshes import MeshShape

Interval: TypeAlias = tuple[int, int]


def intervals(parts: int, length: int) -> list[Interval]:
    """Return the intervals of a parameter that is divided into so many parts of this length."""
    return [(part * length, (part + 1) * length) for part in range(parts)]


def best_places(old: Sequence[Interval], new: Sequence[Interval]) -> list[int]:
    """Return a place in `new` for each of `old`, which are at most as many, such that the overlaps add up to the most.

    Both are in ascending order, and the places keep the order: exchanging two would never add overlap. The result follows
    by dynamic programming over both; of equal ones it has the lowest places.
    """
    best = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for one, place in itertools.product(range(1, len(old) + 1), range(1, len(new) + 1)):
        placed = best[one - 1][place - 1] + _overlap(old[one - 1], new[place - 1])
        best[one][place] = max(placed, best[one][place - 1]) if place > one else placed
    places: list[int] = []
    place = len(new)
    for one in range(len(old), 0, -1):
        while place > one and best[one][place] == best[one][place - 1]:
            place -= 1
        place -= 1
        places.append(place)
    return places[::-1]


def new_ranks(stay: Sequence[int], before: MeshShape, after: MeshShape) -> list[int]:
    """Return the new rank of each old rank that stays, all of different ranks in ascending order.

    The ranks of a pipeline stay together. If one is not whole, survivors come first, in their order.
    """
    groups = sorted({before.data_rank(rank) for rank in stay})
    whole = len(stay) == len(groups) * before.pipeline
    if (before.pp, before.tp) != (after.pp, after.tp) or not whole or len(groups) > after.data:
        return list(range(len(stay)))
    held = {group: group % before.fsdp for group in groups}
    if len(set(held.values())) < before.fsdp and len(groups) < after.data:
        # Leaving ranks first give their parts to those that stay, which then hold equal ones in their order.
        held, parts = {group: number for number, group in enumerate(groups)}, len(groups)
    else:
        parts = before.fsdp
    in_order = sorted(groups, key=lambda group: (held[group], group))
    places = sorted(range(after.data), key=lambda group: (group % after.fsdp, group))
    of_old, of_new = intervals(parts, after.fsdp), intervals(after.fsdp, parts)
    found = best_places(
        [of_old[held[group]] for group in in_order], [of_new[place % after.fsdp] for place in places]
    )
    chosen = {group: places[place] for group, place in zip(in_order, found, strict=True)}
    return [after.rank_at(chosen[before.data_rank(rank)], before.position(rank)) for rank in stay]


def ranks_to_keep(
    ranks: Mapping[int, str], room: Mapping[str, int], before: MeshShape, after: MeshShape
) -> list[int]:
    """Return the ranks that stay when a job shrinks to the mesh `after`, in ascending order.

    `ranks` has the node of each rank, and `room` the number that stays on each node. Each new rank in turn takes the old
    one that keeps the largest part, of equal ones the lowest.
    """
    left, open_ranks = dict(room), dict(ranks)
    of_old, of_new = intervals(before.fsdp, after.fsdp), intervals(after.fsdp, before.fsdp)
    kept: list[int] = []
    alike = (before.pp, before.tp) == (after.pp, after.tp)
    for rank in range(sum(room.values())):
        interval = of_new[after.data_rank(rank) % after.fsdp]
        candidates = [one for one, node in open_ranks.items() if left.get(node, 0) > 0]
        best = max(
            candidates,
            key=lambda one: (
                alike and before.position(one) == after.position(rank),
                _overlap(of_old[before.data_rank(one) % before.fsdp], interval),
                -one,
            ),
        )
        left[open_ranks.pop(best)] -= 1
        kept.append(best)
    return sorted(kept)


def _overlap(one: Interval, other: Interval) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
