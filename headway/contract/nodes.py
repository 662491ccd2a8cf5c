"""Nodes as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from headway.contract.agents import DeviceHealth, NodeState
from headway.contract.health import QuarantineView
from headway.contract.markets import Market


class SlotView(BaseModel):
    """A slot and who holds it: `job_id` is empty where that is a job of a project that is not the reader's."""

    index: int
    device_kind: str
    job_id: str | None = None
    job_name: str | None = None
    health: DeviceHealth = DeviceHealth()
    quarantine: QuarantineView | None = None


class NodeView(BaseModel):
    """A host as the API shows it. `lease_remaining_s` is negative once the lease has run out."""

    id: str
    name: str
    state: NodeState
    message: str
    address: str
    slots: list[SlotView]
    lease_remaining_s: float
    joined_at: datetime
    agent_version: str
    market: Market = Market.ON_DEMAND
    usd_per_slot_h: float | None = None
    """Of a rented machine's slots; None: the price of their device kind holds."""
    container_engine: Literal["docker", "podman"] | None = None
    """What starts the ranks of jobs with an image there; None: it takes none of them."""
