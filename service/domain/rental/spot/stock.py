"""Rented machines by the job that they serve, and the slots of machines that were not rented. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market, pool_name
from service.domain.cluster.snapshot import Snapshot
from service.domain.rental.machines import Machine, MachineState
from service.domain.rental.rental_targets import Fleet


@dataclass(frozen=True, slots=True)
class MachineStock:
    """Machines of one type that a job has, by id: those that it holds first, then running ones.

    `can_train` are the machines whose nodes take or keep jobs.
    """

    on_demand: tuple[str, ...]
    spot: tuple[str, ...]
    can_train: frozenset[str]

    def ready(self, market: Market) -> int:
        """Return the machines of a market that can train now."""
        return sum(one in self.can_train for one in (self.spot if market is Market.SPOT else self.on_demand))


class Stock:
    """Machines that are not taken yet, and the jobs that hold each machine."""

    def __init__(self, snapshot: Snapshot, fleet: Fleet) -> None:
        self._snapshot = snapshot
        self._machine_of = {node: machine for machine, node in fleet.nodes.items()}
        self._holders: dict[str, set[str]] = {}
        for key, job in snapshot.held.items():
            if key.node_id in self._machine_of:
                self._holders.setdefault(self._machine_of[key.node_id], set()).add(job)
        self._nodes = fleet.nodes
        self._taken: dict[str, Machine] = {}
        self._open = {one.id: one for one in fleet.machines if self._is_usable(one)}
        self._leased_for = {one.job_id for one in fleet.machines if one.job_id is not None}
        self.own_slots_by_pool: Mapping[str, int] = self._own_slots_by_pool()

    def is_leased_for(self, job_id: str) -> bool:
        """Return True if a user rented machines for the job."""
        return job_id in self._leased_for

    def type_of(self, job_id: str) -> tuple[str, str] | None:
        """Return the provider and the type of most rented machines that a job holds; None without any."""
        held = Counter(
            (one.provider, one.instance_type)
            for one in self._open.values()
            if job_id in self._holders.get(one.id, ())
        )
        return min(held, key=lambda one: (-held[one], one)) if held else None

    def own_slots(self, job_id: str, kind: str) -> int:
        """Return the slots of a kind that a job holds on machines that were not rented."""
        return sum(
            key.node_id not in self._machine_of and self._snapshot.kind_of(key) == kind
            for key in self._snapshot.slots_held_by(job_id)
        )

    def take(self, job_id: str, provider: str, instance_type: str) -> MachineStock:
        """Take the machines of a type that a job holds, and those that no job holds."""
        found = [
            one
            for one in self._open.values()
            if (one.provider, one.instance_type) == (provider, instance_type)
            and one.job_id is None
            and self._holders.get(one.id, {job_id}) >= {job_id}
        ]
        found.sort(key=lambda one: (one.id not in self._holders, not self._can_train(one), one.id))
        taken = {market: tuple(one.id for one in found if one.market is market) for market in Market}
        can_train = frozenset(one.id for one in found if self._can_train(one))
        for one in found:
            self._taken[one.id] = self._open.pop(one.id)
        return MachineStock(taken[Market.ON_DEMAND], taken[Market.SPOT], can_train)

    def release(self, machine_ids: Collection[str]) -> None:
        """Leave machines that no job holds to later jobs."""
        for one in machine_ids:
            if one not in self._holders:
                self._open[one] = self._taken[one]

    def _is_usable(self, machine: Machine) -> bool:
        """Return True for a machine that is starting, or whose node keeps jobs."""
        if machine.state in {MachineState.WANTED, MachineState.LAUNCHING}:
            return True
        return machine.state is MachineState.RUNNING and (
            machine.id not in self._nodes or self._can_train(machine)
        )

    def _can_train(self, machine: Machine) -> bool:
        node = self._snapshot.nodes.get(self._nodes.get(machine.id, ""))
        return node is not None and node.keeps_jobs

    def _own_slots_by_pool(self) -> dict[str, int]:
        """Return the slots of machines that were not rented, by pool; 0 for pools of rented machines alone."""
        found: Counter[str] = Counter()
        for node in self._snapshot.nodes.values():
            if node.state is NodeState.LOST:
                continue
            for kind in node.slots.values():
                found[pool_name(kind, node.market)] += node.id not in self._machine_of
        return dict(found)


def stock_of(snapshot: Snapshot, fleet: Fleet) -> Stock:
    """Return the stock of a fleet on a snapshot."""
    return Stock(snapshot, fleet)
