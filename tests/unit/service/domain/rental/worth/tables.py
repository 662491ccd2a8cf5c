"""Clusters for decisions about machines whose speeds are tables: one kind of node, and jobs worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from headway.contract.values.markets import Market
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Node
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.framework.policy import Policy
from service.domain.rental.decisions.autoscale import decide_rental_targets
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalRules, RentalTargets, RentalTerms
from service.domain.rental.worth.clusters import RentalJob, RentalRound
from tests.unit.service.builders import NOW
from tests.unit.service.domain.policies.rounds import a_round


@dataclass(frozen=True)
class TableCluster:
    """Jobs with `speed` (J, sizes 1 to C) on nodes of one slot, of which `own` are not rented.

    `held` are the slots of each job, in the order of the nodes.
    """

    speed: Sequence[Sequence[float]]
    held: Sequence[int] = ()
    left_h: float = 1e6
    nodes: Sequence[str] = ()
    own: int = 0
    usd_per_slot_h: float = 1.0
    weight: Sequence[float] = ()
    now: datetime = NOW
    cap_usd_per_h: float = math.inf
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        return [(1, len(one)) for one in self.speed]

    def plus(self, nodes: Sequence[Node]) -> TableCluster:
        names = [node.id for node in nodes for _ in node.slots]
        return replace(self, nodes=(*self.nodes, *names))

    def without(self, node_id: str) -> TableCluster:
        return replace(self, nodes=[one for one in self.nodes if one != node_id])

    def round(self, policy: Policy) -> RentalRound:
        jobs, columns = len(self.speed), max(map(len, self.speed), default=1)
        slots = np.arange(1, columns + 1)
        speed = np.array([[*one, *[0.0] * (columns - len(one))] for one in self.speed]).reshape(jobs, columns)
        held = np.array([*self.held, *[0] * (jobs - len(self.held))], dtype=np.int64)
        given = a_round(
            speed,
            slots,
            capacity=len(self.nodes) + self.own,
            usd_per_h=slots * self.usd_per_slot_h,
            current=np.where(held <= len(self.nodes) + self.own, held - 1, -1),
            remaining=self.left_h * 3600.0 * speed[:, 0] if jobs else np.zeros(0),
            **({"weight": np.array(self.weight)} if self.weight else {}),
            **self.fields,
        )
        return RentalRound(
            given=given,
            policy=policy,
            jobs=[
                RentalJob(
                    id=f"j{index}",
                    name=f"j{index}",
                    objective="balanced",
                    sizes=range(1, len(one) + 1),
                )
                for index, one in enumerate(self.speed)
            ],
            pools=[("cpu", Market.ON_DEMAND)],
            parts=slots[:, None],
            usd_per_slot_h=np.array([self.usd_per_slot_h]),
            own=np.array([float(self.own)]),
        )

    def holders(self, node_id: str) -> frozenset[str]:
        if node_id not in self.nodes:
            return frozenset()
        place, first = list(self.nodes).index(node_id), 0
        for index, slots in enumerate(self.held):
            if first <= place < first + slots:
                return frozenset({f"j{index}"})
            first += slots
        return frozenset()

    def is_judged(self, node_id: str) -> bool:
        return node_id in self.nodes

    def likeness(self, node_id: str) -> Hashable:
        return bool(self.holders(node_id))


def power(exponent: float, most: int = 16) -> list[float]:
    """Speeds k^exponent."""
    return [size**exponent for size in range(1, most + 1)]


def best_width(speed: Sequence[float], mu_h_per_usd: float, *, own: int = 0, usd_per_h: float = 1.0) -> int:
    """The size k with the least (1 + mu * dollars) / speed, where the first `own` slots are free."""
    costs = [
        (1.0 + mu_h_per_usd * usd_per_h * max(size - own, 0)) / rate
        for size, rate in enumerate(speed, start=1)
    ]
    return 1 + costs.index(min(costs))


def single(**fields: Any) -> Offer:
    """Machines of one slot for a dollar an hour."""
    return Offer(
        **{
            "provider": "cloud",
            "region": "here",
            "instance_type": "single",
            "device_kind": "cpu",
            "devices": 1,
            "on_demand_usd_per_h": 1.0,
            "min_billed_s": 0.0,
            "seen_at": NOW,
            **fields,
        }
    )


def rented(number: int, **fields: Any) -> list[Machine]:
    """Running machines of one slot, long paid for."""
    return [
        Machine(
            **{
                "id": f"m{index:02}",
                "provider": "cloud",
                "region": "here",
                "instance_type": "single",
                "device_kind": "cpu",
                "slots": 1,
                "market": Market.ON_DEMAND,
                "usd_per_h": 1.0,
                "state": MachineState.RUNNING,
                "reason": MachineReason.JOINED,
                "message": "",
                "requested_at": NOW.replace(hour=1),
                "state_since": NOW.replace(hour=1),
                "billed_from": NOW.replace(hour=1),
                **fields,
            }
        )
        for index in range(number)
    ]


def decided(
    cluster: TableCluster,
    mu_h_per_usd: float = 0.2,
    machines: Sequence[Machine] = (),
    offers: Sequence[Offer] = (single(),),
    **rest: Any,
) -> RentalTargets:
    """The decision at a fixed mu, by default with machines that start at once."""
    return decide_rental_targets(
        replace(cluster, nodes=(*cluster.nodes, *(one.id for one in machines))),
        Fleet(machines=machines, nodes={one.id: one.id for one in machines}),
        offers,
        RentalTerms(
            **{
                "rules": RentalRules(max_machines=64, idle_s=0.0),
                "policy": BudgetPolicy(mu_h_per_usd=mu_h_per_usd),
                "solve": solve,
                "boot_s": {("cloud", "single"): 0.0},
                **rest,
            }
        ),
    )
