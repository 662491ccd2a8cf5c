"""Catalogue: built-in facts about instance types, merged with newer facts from providers. Pure.

The built-in facts are AWS's in us-east-1. The facts of the eleven types that DeepVM compares are those of its
`data.json` (CCGrid'24), so that its published plans can be reproduced. The other types have the list prices
for Linux. Their spot price is a third of that, which is about the average over a year. Hazards of V100s are
from the availability traces of "Can't Be Late" (NSDI'24). No public source gives the other hazards. They are
guesses of the same order until `hazards` has learned better values.

TFLOPS are the maker's figures for dense half precision on tensor cores, else for single precision. They only
serve as a first guess of the ratio between two kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from headway.contract.values.markets import Market
from service.domain.rental.offers import Offer
from service.domain.shared.errors import InvalidField

GIB: Final = 1 << 30
CURRENCY: Final = "USD"
_DEEPVM_SEEN: Final = datetime(2024, 2, 1, tzinfo=UTC)
_LIST_SEEN: Final = datetime(2025, 9, 1, tzinfo=UTC)
_SPOT_SHARE: Final = 0.34
"""Spot price relative to the on-demand price, where only the on-demand price is published."""

# kind: (TFLOPS of a device, GiB of a device, hazard per hour)
_KINDS: Final = {
    "cpu": (0.1, 0, 0.02),
    "m60": (4.8, 8, 0.05),
    "t4": (65.0, 16, 0.06),
    "a10g": (70.0, 24, 0.1),
    "l4": (121.0, 24, 0.1),
    "l40s": (362.0, 48, 0.1),
    "v100": (125.0, 16, 0.2),
    "a100": (312.0, 40, 0.25),
    "h100": (989.0, 80, 0.3),
}

# type, kind, devices, dollars on demand, on spot, vCPUs, GiB, Gbit/s
_DEEPVM: Final = (
    ("g3s.xlarge", "m60", 1, 0.75, 0.225, 4, 30.5, 10),
    ("g4dn.xlarge", "t4", 1, 0.526, 0.1578, 4, 16, 25),
    ("g5.xlarge", "a10g", 1, 1.006, 0.3018, 4, 16, 10),
    ("c3.xlarge", "cpu", 2, 0.21, 0.1281, 4, 7.5, 0.3),
    ("c4.xlarge", "cpu", 2, 0.199, 0.1257, 4, 7.5, 1.7),
    ("t3.xlarge", "cpu", 2, 0.1664, 0.1033, 4, 16, 5),
    ("c5.xlarge", "cpu", 2, 0.17, 0.0999, 4, 8, 10),
    ("m6i.xlarge", "cpu", 2, 0.192, 0.12, 4, 16, 12.5),
    ("d3.xlarge", "cpu", 2, 0.499, 0.1584, 4, 32, 15),
    ("c5n.xlarge", "cpu", 2, 0.216, 0.127, 4, 10.5, 25),
    ("c6in.xlarge", "cpu", 2, 0.2268, 0.1272, 4, 8, 30),
)

# type, kind, devices, dollars on demand, vCPUs, GiB, Gbit/s
_LIST: Final = (
    ("c6i.4xlarge", "cpu", 8, 0.68, 16, 32, 12.5),
    ("c6i.16xlarge", "cpu", 32, 2.72, 64, 128, 25),
    ("g4dn.2xlarge", "t4", 1, 0.752, 8, 32, 25),
    ("g4dn.12xlarge", "t4", 4, 3.912, 48, 192, 50),
    ("g4dn.metal", "t4", 8, 7.824, 96, 384, 100),
    ("g5.2xlarge", "a10g", 1, 1.212, 8, 32, 10),
    ("g5.12xlarge", "a10g", 4, 5.672, 48, 192, 40),
    ("g5.48xlarge", "a10g", 8, 16.288, 192, 768, 100),
    ("g6.xlarge", "l4", 1, 0.8048, 4, 16, 10),
    ("g6.2xlarge", "l4", 1, 0.9776, 8, 32, 10),
    ("g6.12xlarge", "l4", 4, 4.6016, 48, 192, 40),
    ("g6.48xlarge", "l4", 8, 13.3504, 192, 768, 100),
    ("g6e.xlarge", "l40s", 1, 1.861, 4, 32, 20),
    ("g6e.12xlarge", "l40s", 4, 10.4926, 48, 384, 100),
    ("g6e.48xlarge", "l40s", 8, 30.1312, 192, 1536, 400),
    ("p3.2xlarge", "v100", 1, 3.06, 8, 61, 10),
    ("p3.8xlarge", "v100", 4, 12.24, 32, 244, 10),
    ("p3.16xlarge", "v100", 8, 24.48, 64, 488, 25),
    ("p4d.24xlarge", "a100", 8, 21.9576, 96, 1152, 400),
    ("p5.4xlarge", "h100", 1, 6.88, 16, 256, 100),
    ("p5.48xlarge", "h100", 8, 55.04, 192, 2048, 3200),
)


def _fact(
    instance_type: str,
    kind: str,
    devices: int,
    on_demand: float,
    spot: float,
    vcpus: int,
    memory_gib: float,
    gbps: float,
    seen_at: datetime,
) -> Offer:
    tflops, device_gib, hazard = _KINDS[kind]
    return Offer(
        provider="ec2",
        region="us-east-1",
        instance_type=instance_type,
        device_kind=kind,
        devices=devices,
        tflops=tflops,
        device_memory_bytes=device_gib * GIB,
        vcpus=vcpus,
        memory_bytes=int(memory_gib * GIB),
        network_gbps=gbps,
        on_demand_usd_per_h=on_demand,
        spot_usd_per_h=spot,
        hazard_per_h=hazard,
        seen_at=seen_at,
    )


DEEPVM: Final = tuple(
    _fact(name, kind, devices, on_demand, spot, vcpus, gib, gbps, _DEEPVM_SEEN)
    for name, kind, devices, on_demand, spot, vcpus, gib, gbps in _DEEPVM
)
"""Types that DeepVM compares, with its own data."""
BUILT_IN: Final = (
    *DEEPVM,
    *(
        _fact(name, kind, devices, usd, round(usd * _SPOT_SHARE, 4), vcpus, gib, gbps, _LIST_SEEN)
        for name, kind, devices, usd, vcpus, gib, gbps in _LIST
    ),
)
"""Offers that are known without asking any provider."""


def tflops_of(kind: str) -> float:
    """Return the TFLOPS of a device of a kind, 0 if unknown."""
    return _KINDS[kind][0] if kind in _KINDS else 0.0


def hazard_of(kind: str) -> float:
    """Return the prior interruptions per hour of a spot machine with this kind, 0 if unknown."""
    return _KINDS[kind][2] if kind in _KINDS else 0.0


def usd(amount: float, currency: str, *, of: str) -> float:
    """Return a price in dollars. `of` names the priced item in error messages.

    Raises:
        InvalidField: The price is in another currency, or it is not a valid price. Other currencies are not converted,
            because rates change and the bill would not add up.
    """
    if currency.upper() != CURRENCY:
        raise InvalidField(
            "currency",
            f"{of} is priced in {currency}; only prices in {CURRENCY} are supported. Request those from the provider.",
        )
    if not (math.isfinite(amount) and amount >= 0):
        raise InvalidField("price", f"{of} costs {amount}, which is not a valid price.")
    return amount


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Offers by provider, region, type and zone. `left_out` gives the reason for each rejected offer."""

    offers: tuple[Offer, ...]
    left_out: tuple[str, ...] = ()


def merged(*sources: Iterable[Offer]) -> Catalogue:
    """Return one catalogue of several sources.

    Of offers for the same type in the same place, the newest counts. It takes missing facts from the others,
    except prices and hazards, which soon become outdated. An offer for a whole region counts until its zones
    have offers that are at least as new. An offer without a price is rejected.
    """
    left_out: list[str] = []
    newest: dict[tuple[str, str, str, str], Offer] = {}
    facts: dict[tuple[str, str], Offer] = {}
    for given in sorted((one for source in sources for one in source), key=lambda one: one.seen_at):
        of_type = (given.provider, given.instance_type)
        offer = _completed(given, facts.get(of_type))
        place = (offer.provider, offer.region, offer.zone, offer.instance_type)
        why = _defect(offer)
        if why:
            left_out.append(f"{offer.provider} {offer.instance_type} in {offer.zone or offer.region}: {why}")
            # A type that is no longer sold cannot be bought at an older price either.
            newest.pop(place, None)
            continue
        facts[of_type] = newest[place] = offer
    zoned = {
        (provider, region, instance_type): one.seen_at
        for (provider, region, zone, instance_type), one in newest.items()
        if zone
    }
    kept = [
        one
        for (provider, region, zone, instance_type), one in sorted(newest.items())
        if zone
        or zoned.get((provider, region, instance_type), datetime.min.replace(tzinfo=UTC)) < one.seen_at
    ]
    return Catalogue(offers=tuple(kept), left_out=tuple(left_out))


def _completed(offer: Offer, before: Offer | None) -> Offer:
    if before is None or before.device_kind != offer.device_kind:
        return replace(offer, tflops=offer.tflops or tflops_of(offer.device_kind))
    return replace(
        offer,
        tflops=offer.tflops or before.tflops,
        device_memory_bytes=offer.device_memory_bytes or before.device_memory_bytes,
        vcpus=offer.vcpus or before.vcpus,
        memory_bytes=offer.memory_bytes or before.memory_bytes,
        network_gbps=offer.network_gbps or before.network_gbps,
    )


def _defect(offer: Offer) -> str:
    """Return the reason why the offer is rejected, empty if it is valid."""
    prices = [price for market in Market if (price := offer.usd_per_h(market)) is not None]
    if not prices:
        return "it has no price"
    if any(not (math.isfinite(price) and price >= 0) for price in prices):
        return "its price is not a valid number of dollars"
    if offer.devices < 1:
        return "it has no device to train on"
    return ""


def selected(
    offers: Iterable[Offer],
    *,
    device: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    market: Market | None = None,
    max_usd_per_h: float | None = None,
) -> tuple[Offer, ...]:
    """Return the offers that fulfil every given condition. One market within the price is enough."""
    found = []
    for one in offers:
        if device not in (None, one.device_kind) or provider not in (None, one.provider):
            continue
        if region is not None and region not in (one.region, one.zone):
            continue
        prices = [one.usd_per_h(each) for each in Market if market in (None, each)]
        if any(price is not None and (max_usd_per_h is None or price <= max_usd_per_h) for price in prices):
            found.append(one)
    return tuple(found)
