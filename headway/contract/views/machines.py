"""Rented machines, as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from headway.contract.values.markets import Market


class MachineView(BaseModel):
    """A rented machine and its cost.

    `state`: wanted, launching, running, ending, gone or failed. `reason` is for programs, `message` for
    people. `external_id` is the provider's name for the machine, `node` the name of its node. The provider
    bills it from `billed_from` to `billed_to` (None: still billed), and for at least `min_billed_s` seconds.
    """

    id: str
    provider: str
    region: str
    zone: str
    instance_type: str
    device_kind: str
    slots: int
    market: Market
    usd_per_h: float
    state: str
    reason: str
    message: str
    external_id: str | None
    node: str | None
    requested_at: datetime
    state_since: datetime
    billed_from: datetime | None
    billed_to: datetime | None
    min_billed_s: float
    billed_s: float
    """Seconds billed so far; after its end, no fewer than `min_billed_s`."""
    cost_usd: float
    """Cost so far."""
