"""Capacity of each pool of the cluster, and the part of it that a round may grant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from service.domain.allocation.configurations.eligibility import Holding
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Node, SlotKey, Snapshot
from service.domain.shared.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """Capacity of a pool by node (N,): `nodes` in order, `slots` in total, and `room`, the slots that a round
    may grant.

    `usd_per_slot_h` is the mean of the nodes' prices.
    """

    pool: Pool
    nodes: tuple[str, ...]
    slots: IntArray
    room: IntArray
    usd_per_slot_h: float


def capacities_of(snapshot: Snapshot, holdings: Mapping[str, Holding]) -> dict[str, PoolCapacity]:
    """Return the capacity of each pool in service by pool name, in order.

    `holdings` are those of the jobs that the round decides about.
    """
    slots: dict[Pool, dict[str, int]] = {}
    members: dict[Pool, list[Node]] = {}
    for node in sorted(snapshot.nodes.values(), key=lambda node: node.id):
        for kind in node.slots.values():
            pool = snapshot.pool_on(node, kind)
            of_pool = slots.setdefault(pool, {})
            if not members.get(pool) or members[pool][-1] is not node:
                members.setdefault(pool, []).append(node)
            if node.takes_jobs:
                of_pool[node.id] = of_pool.get(node.id, 0) + 1
    room: dict[Pool, dict[str, int]] = {}
    for key in _givable(snapshot, holdings):
        found = snapshot.pool_of(key)
        if found is not None and snapshot.nodes[key.node_id].takes_jobs:
            of_pool = room.setdefault(found, {})
            of_pool[key.node_id] = of_pool.get(key.node_id, 0) + 1
    return {
        pool.name: PoolCapacity(
            pool=pool,
            nodes=tuple(slots[pool]),
            slots=np.array([*slots[pool].values()], dtype=np.int64),
            room=np.array([room.get(pool, {}).get(node, 0) for node in slots[pool]], dtype=np.int64),
            usd_per_slot_h=_price(snapshot, pool, members[pool]),
        )
        for pool in sorted(slots)
    }


def _givable(snapshot: Snapshot, holdings: Mapping[str, Holding]) -> list[SlotKey]:
    """Return the free slots and the slots of jobs that may be moved."""
    return [*snapshot.free, *(key for one in holdings.values() for key in one.keepable)]


def _price(snapshot: Snapshot, pool: Pool, nodes: list[Node]) -> float:
    """Return the mean price of the nodes that take jobs, or of all nodes if none does."""
    prices = [
        snapshot.usd_per_slot_h_of(node, pool.kind)
        for node in [node for node in nodes if node.takes_jobs] or nodes
    ]
    # Equal prices are returned as they are: their mean may differ in the last digit.
    return prices[0] if len(set(prices)) == 1 else sum(prices) / len(prices)
