"""Offers of providers: facts about instance types, with their place and the time of the facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import TOGETHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Instance type of a provider in one place.

    Attributes:
        device_kind, devices: Slots of a machine. A machine without GPUs has the kind `cpu` and `devices` slots.
        tflops: TFLOPS of one device, 0 if unknown.
        network_gbps: Sustained network bandwidth of the type.
        on_demand_usd_per_h, spot_usd_per_h: Price on each market, None where the type is not sold on it.
        hazard_per_h: Expected interruptions per hour of a spot machine of the type in that place.
        together: Share of these interruptions that take all machines of the zone at once.
        min_billed_s: Shortest period that a machine is paid for.
        seen_at: Time at which the facts were true.
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
    together: float = TOGETHER
    min_billed_s: float = 60.0
    seen_at: datetime

    def usd_per_h(self, market: Market) -> float | None:
        """Return the price of a machine on a market, or None if it is not sold there."""
        return self.on_demand_usd_per_h if market is Market.ON_DEMAND else self.spot_usd_per_h
