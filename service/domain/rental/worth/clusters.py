"""Hypothetical clusters: the cluster of a decision about machines, with some more of them or without one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.allocation.inputs.policy_state import advanced
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import Node, Snapshot
from service.domain.policies.framework.policy import Policy, RoundInput
from service.domain.rental.room import cluster_cap
from service.domain.shared.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalJob:
    """Job that a round decides about, with the sizes that it may have."""

    id: str
    name: str
    objective: str
    sizes: Sequence[int]

    def next_step(self, slots: int) -> int:
        """Return the slots between a size and the next size that the job may have."""
        return min((size - slots for size in self.sizes if size > slots), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalRound:
    """Round on a hypothetical cluster.

    Attributes:
        given: input of the policy.
        policy: the policy of this round.
        jobs: (J,) the jobs, in the order of `given`.
        pools: (P,) device kind and market of each pool.
        parts: (C, P) slots of each column in each pool.
        usd_per_slot_h: (P,) mean price of the pool's slots.
        own: (P,) slots of hosts that are not rented.
    """

    given: RoundInput
    policy: Policy
    jobs: Sequence[RentalJob]
    pools: Sequence[tuple[str, Market]]
    parts: IntArray
    usd_per_slot_h: FloatArray
    own: FloatArray


class RentalCluster(Protocol):
    """Cluster of a decision about machines, as a value. The service and the simulator each have their own."""

    @property
    def now(self) -> datetime:
        """Return the time of the decision."""
        ...

    @property
    def cap_usd_per_h(self) -> float:
        """Limit on the dollars per hour of all slots; infinite without one."""
        ...

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Smallest and largest size of each job that has not ended."""
        ...

    def plus(self, nodes: Sequence[Node]) -> Self:
        """Return the cluster with the nodes of more machines."""
        ...

    def without(self, node_id: str) -> Self:
        """Return the cluster without the slots of a node."""
        ...

    def round(self, policy: Policy) -> RentalRound:
        """Return the round of the cluster under a policy."""
        ...

    def holders(self, node_id: str) -> frozenset[str]:
        """Return the jobs that hold slots of a node."""
        ...

    def is_judged(self, node_id: str) -> bool:
        """Return whether to evaluate the worth of a node."""
        ...

    def likeness(self, node_id: str) -> Hashable:
        """Return a key that equal nodes share: without one of them, a round is the same as without another."""
        ...


@dataclass(frozen=True)  # without slots=True, which rules out cached_property
class SnapshotCluster:
    """Cluster of the service: a snapshot, and the ids of the nodes that are rented."""

    snapshot: Snapshot
    rented: frozenset[str]

    @property
    def now(self) -> datetime:
        """Return the time of the snapshot."""
        return self.snapshot.now

    @property
    def cap_usd_per_h(self) -> float:
        """Smallest cap on the dollars per hour of all slots; infinite without one."""
        return cluster_cap(self.snapshot.caps)

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Smallest and largest size of each job that has not ended."""
        return [(min(job.sizes), max(job.sizes)) for job in self.snapshot.jobs.values()]

    def plus(self, nodes: Sequence[Node]) -> SnapshotCluster:
        """Return the cluster with the nodes of more machines."""
        added = {node.id: _as_known(self.snapshot, node) for node in nodes}
        snapshot = replace(self.snapshot, nodes={**self.snapshot.nodes, **added})
        return SnapshotCluster(snapshot, self.rented.union(added))

    def without(self, node_id: str) -> SnapshotCluster:
        """Return the cluster in which a node is being drained."""
        drained = replace(self.snapshot.nodes[node_id], state=NodeState.DRAINING)
        return replace(self, snapshot=replace(self.snapshot, nodes={**self.snapshot.nodes, node_id: drained}))

    def round(self, policy: Policy) -> RentalRound:
        """Return the production round of the cluster."""
        round_ = build_round(self.snapshot)
        scope, columns = round_.scope, round_.columns
        rooms = [scope.capacities[pool.name] for pool in columns.pools]
        return RentalRound(
            given=round_.given,
            policy=advanced(policy, round_)[0],
            jobs=[
                RentalJob(id=job.id, name=job.name, objective=job.spec.goal.objective, sizes=job.sizes)
                for job in round_.jobs
            ],
            pools=[(pool.kind, pool.market) for pool in columns.pools],
            parts=columns.parts,
            usd_per_slot_h=np.array([room.usd_per_slot_h for room in rooms]),
            own=np.array(
                [
                    sum(
                        slots
                        for node, slots in zip(room.nodes, room.slots.tolist(), strict=True)
                        if node not in self.rented
                    )
                    for room in rooms
                ],
                dtype=np.float64,
            ),
        )

    def holders(self, node_id: str) -> frozenset[str]:
        """Return the jobs that hold slots of a node."""
        return self._jobs_by_node.get(node_id, frozenset())

    @cached_property
    def _jobs_by_node(self) -> Mapping[str, frozenset[str]]:
        jobs: dict[str, set[str]] = {}
        for key, job in self.snapshot.held.items():
            jobs.setdefault(key.node_id, set()).add(job)
        return {node: frozenset(held) for node, held in jobs.items()}

    def is_judged(self, node_id: str) -> bool:
        """Return whether to evaluate the worth of a node.

        A node that takes no new jobs is evaluated, since it costs money too. A node that jobs are leaving is
        evaluated once they have left.
        """
        node = self.snapshot.nodes.get(node_id)
        if node is None or node.state is NodeState.LOST:
            return False
        return node.keeps_jobs or not self.holders(node_id)

    def likeness(self, node_id: str) -> Hashable:
        """Return the facts of a node that a round considers."""
        node = self.snapshot.nodes[node_id]
        kinds = tuple(sorted(node.slots.values()))
        facts = node.market, node.usd_per_slot_h, node.containers, node.state, node.reclaim_at
        return kinds, self.holders(node_id), facts


def _as_known(snapshot: Snapshot, coming: Node) -> Node:
    """Return a hypothetical node that runs containers if a similar node does, or if there is no similar node."""
    alike = [
        node.containers
        for node in snapshot.nodes.values()
        if node.market is coming.market and set(node.slots.values()) & set(coming.slots.values())
    ]
    return replace(coming, containers=any(alike) or not alike)
