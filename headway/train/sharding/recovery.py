"""Plan to continue without lost ranks, whose shards their successors hold as copies. Pure.

Position p of a ring of `size` ranks has shard p of each tensor, and a copy of shard p - 1; position 0 has that of the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headway.train.sharding.boxes import Box
from headway.train.state.sharded import ShardsLost

Span: TypeAlias = tuple[int, int]
"""First and end of the positions whose shards a rank holds."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The lost shard at `position`: rank `holder` has its copy, and rank `keeper` joins that to the shards beside it."""

    position: int
    holder: int
    keeper: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The adoptions, and the shards of each remaining rank after them; None for a new rank."""

    adoptions: tuple[Adoption, ...]
    spans: tuple[Span | None, ...]


def plan_recovery(positions: Sequence[int | None], size: int) -> RecoveryPlan:
    """Return the plan for ranks that had these positions in a ring of `size`; None for a new rank.

    Raises:
        ShardsLost: a rank and the one that holds the copy of its shards are lost.
    """
    ranks = {position: rank for rank, position in enumerate(positions) if position is not None}
    spans = {rank: (position, position + 1) for position, rank in ranks.items()}
    adoptions = []
    for position in range(size):
        if position in ranks:
            continue
        holder = ranks.get((position + 1) % size)
        if holder is None:
            raise ShardsLost(
                f"SHARDS_LOST: rank {position} and the holder of the copy of its shards are both lost.",
                "The job restarts from its checkpoint.",
            )
        # A keeper's shards must be contiguous, so the copy of the last shard goes to the rank before it.
        before = position == size - 1
        keeper = ranks[position - 1] if before else holder
        first, end = spans[keeper]
        spans[keeper] = (first, end + 1) if before else (first - 1, end)
        adoptions.append(Adoption(position, holder, keeper))
    return RecoveryPlan(tuple(adoptions), tuple(spans.get(rank) for rank in range(len(positions))))


def joined(boxes: Sequence[Box], dim: int | None) -> Box:
    """Return the box of contiguous shards, which divide a tensor in dimension `dim`; None: each is the whole tensor."""
    if dim is None:
        return boxes[0]
    sizes = list(boxes[0].sizes)
    sizes[dim] = sum(one.sizes[dim] for one in boxes)
    return Box(boxes[0].offsets, tuple(sizes))
