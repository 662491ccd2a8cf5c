"""Capacity of each pool of the cluster, and the part of it that a round may grant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.contract.values.topology import LEVELS, path_of
from service.domain.allocation.configurations.eligibility import Holding
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Node, Snapshot
from service.domain.shared.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """Capacity of a pool by node (N,), for the nodes that take jobs.

    Attributes:
        pool: the pool.
        nodes: ids of the nodes, in ascending order.
        slots: (N,) number of slots of each node.
        room: (N,) the slots that a round may grant: free slots, and slots of jobs that it may move.
        usd_per_slot_h: mean of the nodes' prices.
        within: most slots of a group of nodes that differ at no topology level, at most at the first, at most at
            the second, and so on. Empty if no node has labels.
    """

    pool: Pool
    nodes: tuple[str, ...]
    slots: IntArray
    room: IntArray
    usd_per_slot_h: float
    within: tuple[int, ...] = ()

    def crossed(self, slots: IntArray) -> IntArray:
        """Return the number of the smallest level that these sizes (C,) must cross, 0 for none."""
        # The largest level is crossed by every size that no group holds.
        return np.searchsorted(np.array(self.within, dtype=np.int64), slots)


def capacities_of(snapshot: Snapshot, holdings: Mapping[str, Holding]) -> dict[str, PoolCapacity]:
    """Return the capacity of each pool by pool name, in order; a pool may have no node that takes jobs.

    `holdings` are those of the jobs that the round decides about.
    """
    slots: Counter[tuple[Pool, str]] = Counter()
    members: dict[Pool, dict[str, Node]] = {}
    for node in sorted(snapshot.nodes.values(), key=lambda node: node.id):
        for kind in node.slots.values():
            pool = snapshot.pool_on(node, kind)
            members.setdefault(pool, {})[node.id] = node
            slots[pool, node.id] += 1
    keepable = (key for holding in holdings.values() for key in holding.keepable)
    room = Counter((snapshot.pool_of(key), key.node_id) for key in (*snapshot.free, *keepable))
    capacities = {}
    for pool in sorted(members):
        taking = [node.id for node in members[pool].values() if node.takes_jobs]
        capacities[pool.name] = PoolCapacity(
            pool=pool,
            nodes=tuple(taking),
            slots=np.array([slots[pool, node] for node in taking], dtype=np.int64),
            room=np.array([room[pool, node] for node in taking], dtype=np.int64),
            usd_per_slot_h=_price(snapshot, pool, list(members[pool].values())),
            within=_within([members[pool][node] for node in taking], [slots[pool, node] for node in taking]),
        )
    return capacities


def _within(nodes: Sequence[Node], slots: Sequence[int]) -> tuple[int, ...]:
    """Return `PoolCapacity.within` of nodes with these numbers of slots."""
    if not any(node.labels for node in nodes):
        return ()
    largest = []
    for level in range(len(LEVELS)):
        groups: Counter[tuple[str, ...]] = Counter()
        for node, count in zip(nodes, slots, strict=True):
            groups[path_of(node.labels)[level:]] += count
        largest.append(max(groups.values()))
    return tuple(largest)


def _price(snapshot: Snapshot, pool: Pool, nodes: Sequence[Node]) -> float:
    """Return the mean price of the nodes that take jobs, or of all nodes if none does."""
    priced = [node for node in nodes if node.takes_jobs] or nodes
    prices = [snapshot.usd_per_slot_h_of(node, pool.kind) for node in priced]
    # Equal prices are returned as they are: their mean may differ in the last digit.
    return prices[0] if len(set(prices)) == 1 else sum(prices) / len(prices)
