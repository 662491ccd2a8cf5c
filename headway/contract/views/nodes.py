"""Nodes as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from headway.contract.agents import NodeState
from headway.contract.health import DeviceHealth, QuarantineView
from headway.contract.values.markets import Market


class SlotView(BaseModel):
    """A slot and its holder. `job_id` is empty if the job belongs to a project that the reader may not see."""

    index: int
    device_kind: str
    job_id: str | None = None
    job_name: str | None = None
    health: DeviceHealth = DeviceHealth()
    quarantine: QuarantineView | None = None
    slow: str = ""
    """Description of a rank that was lately slower on this slot than the others of its job; empty without one."""
    withheld: str = ""
    """Reason why the agent starts no job on this slot; empty when the slot is usable."""


class NodeView(BaseModel):
    """A host as the API shows it. `lease_remaining_s` is negative once the lease has expired."""

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
    """Price of a rented machine's slots; None: the price of the device kind applies."""
    container_engine: Literal["docker", "podman"] | None = None
    """Container engine that runs jobs with an image there; None: the node takes no such jobs."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Topology labels by level: `nvlink`, `rack` and `zone`."""
