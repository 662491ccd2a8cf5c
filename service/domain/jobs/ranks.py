"""Assignment of ranks to the slots of an allocation, and the choice of the rendezvous port."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headway.contract.agents import RankSlot
from service.domain.jobs.job import Allocation


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks of one node. `node_rank` is torchrun's GROUP_RANK."""

    node_id: str
    node_rank: int
    ranks: tuple[RankSlot, ...]


def layout(allocation: Allocation, *, previous_first: str | None = None) -> tuple[NodeRanks, ...]:
    """Return the ranks in node order, consecutive within a node; rank 0 is on the first node.

    The node that held rank 0 before stays first, followed by larger shares, then by node id. The same
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
    """Return a rendezvous port of the node in [first, last] that no live generation uses.

    The search starts at `seed`, so that a new generation rarely gets a port that the operating system still
    holds from the previous one. If all ports are taken, the one at `seed` is returned and the agent reports
    that it cannot bind it.
    """
    span = last - first + 1
    candidates = (first + (seed + offset) % span for offset in range(span))
    return next((port for port in candidates if port not in taken), first + seed % span)
