"""From an allocation to ranks: who is rank 0, where the rendezvous is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headway.contract.agents import RankSlot
from service.domain.jobs import Allocation


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks of one node. `node_rank` is torchrun's GROUP_RANK."""

    node_id: str
    node_rank: int
    ranks: tuple[RankSlot, ...]


def layout(allocation: Allocation, *, previous_first: str | None = None) -> tuple[NodeRanks, ...]:
    """Ranks in node order, consecutive within a node; rank 0 is on the first node.

    The node that held rank 0 before stays first, then larger shares, then node ids: the same
    allocation always gives the same ranks.
    """
    order = sorted(allocation, key=lambda node: (node != previous_first, -len(allocation[node]), node))
    nodes: list[NodeRanks] = []
    rank = 0
    for node_rank, node in enumerate(order):
        slots = sorted(allocation[node])
        ranks = tuple(
            RankSlot(rank=rank + local, local_rank=local, slot=slot) for local, slot in enumerate(slots)
        )
        nodes.append(NodeRanks(node, node_rank, ranks))
        rank += len(slots)
    return tuple(nodes)


def choose_port(first: int, last: int, taken: Collection[int], *, seed: int) -> int:
    """A rendezvous port of the node in [first, last] that no live generation uses.

    Ports are taken in turn from `seed` on, so that a new generation seldom meets a port that the
    system still holds from the one before. When all are taken, the seeded one is returned: the
    agent will report that it cannot bind it.
    """
    span = last - first + 1
    candidates = (first + (seed + offset) % span for offset in range(span))
    return next((port for port in candidates if port not in taken), first + seed % span)
