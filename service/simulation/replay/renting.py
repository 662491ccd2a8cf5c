"""Renting in a replay: machines that boot, are billed and are released, by the decisions of the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

import numpy as np

from headway.contract.values.markets import Market
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.knapsack.solver import solve as production_solve
from service.domain.cluster.snapshot import Node
from service.domain.policies.framework.policy import Policy, RoundInput
from service.domain.rental.decisions.autoscale import decide_rental_targets
from service.domain.rental.machines import ENDED, Machine, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import (
    Fleet,
    RentalRules,
    RentalTarget,
    RentalTargets,
    RentalTerms,
)
from service.domain.rental.worth.clusters import RentalJob, RentalRound
from service.domain.shared.arrays import BoolArray, IntArray
from service.simulation.model.clusters import rows_of
from service.simulation.model.world import World
from service.simulation.replay.nodes import ReplayNodes

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the second 0 of a replay, for decisions and bills."""
_OBJECTIVE = "balanced"
"""Objective of the jobs of a replay."""
_GAP = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRenting:
    """Terms on which a replay rents machines.

    Every node of the world is one that can be rented, on demand. `boot_s` are the seconds from a decision
    until the node takes jobs. A machine is paid for from the decision on.
    """

    rules: RentalRules
    boot_s: float = 120.0
    min_billed_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCluster:
    """Cluster of a replay for a decision about machines (`RentalCluster`).

    Attributes:
        world, nodes: the world, and all nodes that it could have.
        jobs: the jobs that the round decides about.
        given_with: input of a round with these rows.
        now: time of the decision.
        present: mask of the nodes in this cluster (N,).
        jobs_on: indices of the jobs by node.
    """

    world: World
    nodes: ReplayNodes
    jobs: Sequence[RentalJob]
    given_with: Callable[[tuple[Row, ...]], RoundInput]
    now: datetime
    present: Sequence[bool]
    jobs_on: Mapping[int, set[int]]

    @property
    def cap_usd_per_h(self) -> float:
        """A replay has no cap on dollars."""
        return math.inf

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Smallest and largest size of each job."""
        return [(min(job.sizes), max(job.sizes)) for job in self.jobs if job.sizes]

    def plus(self, nodes: Sequence[Node]) -> ReplayCluster:
        """Return the cluster with more nodes of the kinds of these nodes, as far as the world has them."""
        present = list(self.present)
        for node in nodes:
            names = set(node.slots.values())
            for index, here in enumerate(present):
                if not here and self.world.kinds[self.nodes.kind[index]].name in names:
                    present[index] = True
                    break
        return replace(self, present=present)

    def without(self, node_id: str) -> ReplayCluster:
        """Return the cluster without a node."""
        present = list(self.present)
        present[int(node_id)] = False
        return replace(self, present=present)

    def round(self, policy: Policy) -> RentalRound:
        """Return the round of the cluster under a policy."""
        room = np.where(np.array(self.present, dtype=np.bool_), self.nodes.size, 0)
        kinds = self.world.kinds
        rooms = [room[self.nodes.kind == index] for index in range(len(kinds))]
        configurations = self.world.configurations
        parts = np.where(
            configurations.kind[:, None] == np.arange(len(kinds)), configurations.slots[:, None], 0
        )
        return RentalRound(
            given=self.given_with(rows_of(configurations, self.nodes.shapes, rooms)),
            policy=policy,
            jobs=self.jobs,
            pools=[(kind.name, Market.ON_DEMAND) for kind in kinds],
            parts=parts,
            usd_per_slot_h=np.array([kind.usd_per_slot_h for kind in kinds]),
            own=np.zeros(len(kinds)),
        )

    def holders(self, node_id: str) -> frozenset[str]:
        """Return the jobs that hold slots of a node."""
        rows = self.jobs_on.get(int(node_id), set()) if node_id else set()
        return frozenset(self.world.arrivals[row].id for row in rows)

    def is_judged(self, node_id: str) -> bool:
        """Return whether the node is present."""
        return node_id.isdigit() and self.present[int(node_id)]

    def likeness(self, node_id: str) -> Hashable:
        """Return kind and slots of a node. Its jobs can move to any other node of the kind."""
        index = int(node_id)
        return int(self.nodes.kind[index]), int(self.nodes.size[index])


class Renter(Protocol):
    """Decision which machines to rent and to release in a replay."""

    def targets(
        self, cluster: ReplayCluster, fleet: Fleet, offers: Sequence[Offer], terms: RentalTerms
    ) -> RentalTargets:
        """Return the machines to rent and to release now."""
        ...


class ServiceRenter:
    """The renter of the service."""

    def targets(
        self, cluster: ReplayCluster, fleet: Fleet, offers: Sequence[Offer], terms: RentalTerms
    ) -> RentalTargets:
        """Return the decision of the service."""
        return decide_rental_targets(cluster, fleet, offers, terms)


@dataclass(slots=True)
class ReplayMachines:
    """Rented machines of a replay. The node of a machine is given by its index among all nodes of the world."""

    world: World
    renting: ReplayRenting
    renter: Renter
    machines: dict[str, Machine] = field(default_factory=dict)
    node_of: dict[str, int] = field(default_factory=dict)
    """Node of each machine that is launching or running."""
    low_since: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def next_s(self) -> float:
        """Time at which the next machine takes jobs."""
        coming = [one for one in self.machines.values() if one.state is MachineState.LAUNCHING]
        return min((self._ready_s(one) for one in coming), default=math.inf)

    @property
    def usd_per_h(self) -> float:
        """Dollars per hour of all machines that are paid for now."""
        return sum(one.usd_per_h for one in self.machines.values() if one.state not in ENDED)

    @property
    def any_open(self) -> bool:
        """True if a machine is paid for now."""
        return bool(self.node_of)

    def arrived(self, now_s: float) -> list[int]:
        """Return the nodes that take jobs from now on."""
        nodes = []
        for machine in list(self.machines.values()):
            if machine.state is MachineState.LAUNCHING and self._ready_s(machine) <= now_s:
                running = replace(machine, state=MachineState.RUNNING, state_since=time_of(now_s))
                self.machines[machine.id] = running
                nodes.append(self.node_of[machine.id])
        return nodes

    def decide(self, cluster: ReplayCluster, policy: Policy, now_s: float) -> list[int]:
        """Rent and release machines, and return the nodes that take no more jobs."""
        open_now = [one for one in self.machines.values() if one.state not in ENDED]
        running = {one.id: str(self.node_of[one.id]) for one in open_now if one.state is MachineState.RUNNING}
        fleet = Fleet(machines=open_now, nodes=running)
        offers = self._offers()
        terms = RentalTerms(
            rules=self.renting.rules,
            policy=policy,
            solve=partial(production_solve, gap=_GAP),
            low_since=self.low_since,
            boot_s={(one.provider, one.instance_type): self.renting.boot_s for one in offers},
        )
        targets = self.renter.targets(cluster, fleet, offers, terms)
        self.low_since = targets.low_since
        for target in targets.rent:
            self._launch(target, now_s)
        return [self._release(one.machine_id, now_s) for one in targets.release]

    def closed(self, end_s: float) -> tuple[Machine, ...]:
        """Return all machines. Those that are open are released once they have been idle for long enough."""
        until = time_of(end_s + self.renting.rules.idle_s)
        return tuple(
            one if one.state in ENDED else replace(one, state=MachineState.GONE, billed_to=until)
            for one in self.machines.values()
        )

    def _ready_s(self, machine: Machine) -> float:
        return (machine.requested_at - START).total_seconds() + self.renting.boot_s

    def _offers(self) -> list[Offer]:
        """Return an offer for each kind of node."""
        return [
            Offer(
                provider="simulation",
                region="simulation",
                instance_type=kind.name,
                device_kind=kind.name,
                devices=kind.node_slots[0],
                on_demand_usd_per_h=kind.usd_per_slot_h * kind.node_slots[0],
                min_billed_s=self.renting.min_billed_s,
                seen_at=START,
            )
            for kind in self.world.kinds
        ]

    def _launch(self, target: RentalTarget, now_s: float) -> None:
        """Rent a node of the kind that is not rented, if there is one."""
        offer, first = target.offer, 0
        taken = set(self.node_of.values())
        for kind in self.world.kinds:
            nodes = range(first, first + len(kind.node_slots))
            first += len(kind.node_slots)
            free = next((node for node in nodes if node not in taken), None)
            if kind.name != offer.device_kind or free is None:
                continue
            now = time_of(now_s)
            wanted = target.machine(f"m{len(self.machines):06}", join_token_sha256="", now=now)
            self.machines[wanted.id] = replace(wanted, state=MachineState.LAUNCHING, billed_from=now)
            self.node_of[wanted.id] = free

    def _release(self, machine_id: str, now_s: float) -> int:
        machine, now = self.machines[machine_id], time_of(now_s)
        self.machines[machine_id] = replace(machine, state=MachineState.GONE, state_since=now, billed_to=now)
        return self.node_of.pop(machine_id)


def rental_jobs(world: World, rows: IntArray, sizes: BoolArray) -> list[RentalJob]:
    """Return the jobs `rows` (n,), which may have the sizes of the columns `sizes` (n, C)."""
    slots = world.configurations.slots
    return [
        RentalJob(
            id=world.arrivals[row].id,
            name=world.arrivals[row].id,
            objective=_OBJECTIVE,
            sizes=np.unique(slots[sizes[index]]).tolist(),
        )
        for index, row in enumerate(rows.tolist())
    ]


def time_of(at_s: float) -> datetime:
    """Return the time of a second of a replay."""
    return START + timedelta(seconds=at_s)
