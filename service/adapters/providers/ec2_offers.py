"""Offers of a region of EC2: types, on-demand prices from the price list, spot prices from their history."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from service.adapters.providers.ec2_client import Ec2Clients
from service.adapters.providers.ec2_settings import Ec2Settings
from service.domain.rental.catalogue import hazard_of, tflops_of
from service.domain.rental.offers import Offer
from service.domain.shared.errors import ProviderRefused, Unavailable

_KEEP = timedelta(hours=6)
"""Time for which types and list prices are cached. They change a few times a year."""
_AT_ONCE = 100
_LINUX = "Linux/UNIX"
_MIB = 1 << 20
_PRODUCT = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


class Ec2Prices:
    """Source of EC2 offers, with a cache of the parts that hardly ever change."""

    def __init__(self, settings: Ec2Settings, clients: Ec2Clients, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._ec2, self._pricing = clients.ec2, clients.pricing
        self._now = now
        self._types: dict[str, dict[str, Any]] = {}
        self._zones: dict[str, set[str]] = {}
        self._on_demand: dict[str, float] = {}
        self._kept_until: datetime | None = None
        self._asking = threading.Lock()

    def offers(self) -> list[Offer]:
        """Return one offer for each type and zone that has a price. Blocks.

        Raises:
            ClientError, BotoCoreError: as boto3 raises them.
            ProviderRefused: the prices are in another currency.
            Unavailable: the price list cannot be read.
        """
        with self._asking:
            return self._ask()

    def _ask(self) -> list[Offer]:
        now = self._now()
        if self._kept_until is None or now >= self._kept_until:
            self._types = self._find_types()
            self._zones = self._find_zones()
            self._on_demand = {
                name: usd for name in self._types if (usd := self._list_price(name)) is not None
            }
            self._kept_until = now + _KEEP
        spot = self._spot_prices(now)
        return [
            offer
            for name in sorted(self._types)
            for zone in sorted(self._zones.get(name, ()))
            if (offer := self._offer(name, zone, spot, now)) is not None
        ]

    def _offer(
        self, name: str, zone: str, spot: Mapping[tuple[str, str], float], now: datetime
    ) -> Offer | None:
        info = self._types[name]
        cpu, memory, network = info["VCpuInfo"], info["MemoryInfo"], info.get("NetworkInfo", {})
        gpu = next(iter(info.get("GpuInfo", {}).get("Gpus", [])), None)
        kind = "cpu" if gpu is None else re.sub(r"[^a-z0-9.]", "", gpu["Name"].lower())
        cores = int(cpu.get("DefaultCores", cpu["DefaultVCpus"]))
        markets = info.get("SupportedUsageClasses", ["on-demand", "spot"])
        on_demand = self._on_demand.get(name) if "on-demand" in markets else None
        spot_usd = spot.get((name, zone)) if "spot" in markets else None
        if on_demand is None and spot_usd is None:
            return None
        return Offer(
            provider="ec2",
            region=self._settings.region,
            zone=zone,
            instance_type=name,
            device_kind=kind,
            devices=cores if gpu is None else int(gpu["Count"]),
            tflops=tflops_of(kind),
            device_memory_bytes=0 if gpu is None else int(gpu["MemoryInfo"]["SizeInMiB"]) * _MIB,
            vcpus=int(cpu["DefaultVCpus"]),
            memory_bytes=int(memory["SizeInMiB"]) * _MIB,
            network_gbps=_network_gbps(network),
            on_demand_usd_per_h=on_demand,
            spot_usd_per_h=spot_usd,
            hazard_per_h=hazard_of(kind),  # EC2 publishes no such number
            seen_at=now,
        )

    def _find_types(self) -> dict[str, dict[str, Any]]:
        """Return the usable configured types: with whole NVIDIA GPUs of one kind, or without any."""
        pages = self._ec2.get_paginator("describe_instance_types").paginate(
            Filters=[{"Name": "instance-type", "Values": [*self._settings.instance_types]}]
        )
        found = (info for page in pages for info in page["InstanceTypes"])
        return {info["InstanceType"]: info for info in found if _usable(info)}

    def _find_zones(self) -> dict[str, set[str]]:
        """Return the zones in which each type is sold, among the zones that may be used."""
        paginator = self._ec2.get_paginator("describe_instance_type_offerings")
        zones: dict[str, set[str]] = {}
        for names in _chunks(sorted(self._types)):
            pages = paginator.paginate(
                LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": names}]
            )
            for offering in (one for page in pages for one in page["InstanceTypeOfferings"]):
                if not self._settings.subnets or offering["Location"] in self._settings.subnets:
                    zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
        return zones

    def _spot_prices(self, now: datetime) -> dict[tuple[str, str], float]:
        """Return the present spot prices in dollars per hour, by type and zone."""
        paginator = self._ec2.get_paginator("describe_spot_price_history")
        latest: dict[tuple[str, str], tuple[datetime, float]] = {}
        for names in _chunks(sorted(self._types)):
            pages = paginator.paginate(
                InstanceTypes=names, ProductDescriptions=[_LINUX], StartTime=now, EndTime=now
            )
            for row in (one for page in pages for one in page["SpotPriceHistory"]):
                place, usd = (row["InstanceType"], row["AvailabilityZone"]), _price(row["SpotPrice"])
                known = latest.get(place)
                if usd is not None and (known is None or row["Timestamp"] >= known[0]):
                    latest[place] = (row["Timestamp"], usd)
        return {place: usd for place, (_, usd) in latest.items()}

    def _list_price(self, name: str) -> float | None:
        """Return the on-demand price in dollars per hour, or None if the price list has none.

        Raises:
            ProviderRefused: the price is in another currency.
            Unavailable: the answer is not a price list.
        """
        wanted = {**_PRODUCT, "regionCode": self._settings.region, "instanceType": name}
        pages = self._pricing.get_paginator("get_products").paginate(
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()],
        )
        try:
            products = [json.loads(text) for page in pages for text in page["PriceList"]]
            prices = [per_unit for product in products for per_unit in _hourly(product)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"EC2's price list of {name} cannot be read: {error!r}.") from error
        for per_unit in prices:
            if per_unit and "USD" not in per_unit:
                raise ProviderRefused(
                    f"EC2 sells {name} in {self._settings.region} for {', '.join(sorted(per_unit))}; Headway counts "
                    "in dollars. Rent in a region that bills in USD."
                )
        dollars = [usd for one in prices if (usd := _price(one.get("USD"))) is not None]
        return min(dollars, default=None)


def _chunks(names: Sequence[str]) -> Iterable[list[str]]:
    """Split names into lists of the length that one request may have."""
    return ([*names[start : start + _AT_ONCE]] for start in range(0, len(names), _AT_ONCE))


def _hourly(product: Mapping[str, Any]) -> Iterable[Mapping[str, str]]:
    """Yield the hourly on-demand prices of a product, each as amounts by currency."""
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs":
                yield dimension["pricePerUnit"]


def _price(text: Any) -> float | None:
    """Return a price, or None if it is not a positive number, such as the zero of a type that is not sold."""
    try:
        usd = float(text)
    except (TypeError, ValueError):
        return None
    return usd if math.isfinite(usd) and usd > 0 else None


def _usable(info: Mapping[str, Any]) -> bool:
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    if not gpus:
        return not any(key in info for key in ("InferenceAcceleratorInfo", "NeuronInfo", "FpgaInfo"))
    whole = all(gpu.get("GpuPartitionSize", 1.0) == 1.0 for gpu in gpus)
    return len(gpus) == 1 and whole and gpus[0]["Manufacturer"] == "NVIDIA"


def _network_gbps(info: Mapping[str, Any]) -> float:
    """Return the sustained bandwidth of all network cards together."""
    return float(sum(card.get("BaselineBandwidthInGbps", 0.0) for card in info.get("NetworkCards", [])))
