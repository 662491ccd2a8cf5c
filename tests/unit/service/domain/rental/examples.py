"""Offers, plans and leases of machines, small to write down."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headway.contract.values.markets import Market
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachineGroup, MachinePlan, Role

SEEN_AT = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30
SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def offer_of(name: str = "g1.small", **fields: Any) -> Offer:
    """An instance type with one T4, four vCPUs, 8 GiB, at $1 on demand and $0.25 on spot."""
    return Offer(
        **{
            "provider": "p",
            "region": "r",
            "instance_type": name,
            "device_kind": "t4",
            "devices": 1,
            "device_memory_bytes": 16 * GIB,
            "vcpus": 4,
            "memory_bytes": 8 * GIB,
            "network_gbps": 5.0,
            "on_demand_usd_per_h": 1.0,
            "spot_usd_per_h": 0.25,
            "hazard_per_h": 0.1,
            "seen_at": SEEN_AT,
            **fields,
        }
    )


def host_offer(name: str = "c1.small", **fields: Any) -> Offer:
    """An instance type without GPUs, at $0.20 on demand and not on spot."""
    return offer_of(
        name,
        **{
            "device_kind": "cpu",
            "device_memory_bytes": 0,
            "on_demand_usd_per_h": 0.2,
            "spot_usd_per_h": None,
            **fields,
        },
    )


def group(machines: int, market: Market = SPOT, role: Role = Role.WORKER, **fields: Any) -> MachineGroup:
    """Machines of one offer, which is `offer_of` with these fields."""
    return MachineGroup(role, offer_of(**fields), market, machines)


def plan_of(*groups: MachineGroup, architecture: Architecture = Architecture.ANCHORED) -> MachinePlan:
    return MachinePlan(architecture, groups)
