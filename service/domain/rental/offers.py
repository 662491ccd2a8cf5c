"""What providers offer: facts about instance types, with where and when they were seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headway.contract.markets import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type of a provider in one place.

    `device_kind` and `devices` are its slots; a machine without GPUs has the kind `cpu`, and as many slots as `devices`
    says. `tflops` is of one device, 0 where nobody says. `network_gbps` is what the type sustains. A price is None where
    the type is not sold on that market there. `hazard_per_h` is how often an hour a spot machine of the type is taken
    away there. `min_billed_s` is the least that a machine is paid for. `seen_at` is when the facts were true.
    """

    provider: str
    region: str
    zone: str = ""
    instance_type: str
    device_kind: str
    devices: int
    tflops: float = 0.0
    device_memory_bytes: int = 0
    vcpus: int = 0
    memory_bytes: int = 0
    network_gbps: float = 0.0
    on_demand_usd_per_h: float | None = None
    spot_usd_per_h: float | None = None
    hazard_per_h: float = 0.0
    min_billed_s: float = 60.0
    seen_at: datetime

    def usd_per_h(self, market: Market) -> float | None:
        """What a machine costs on a market; None where it is not sold."""
        return self.on_demand_usd_per_h if market is Market.ON_DEMAND else self.spot_usd_per_h
