"""Pools: interchangeable slots of one device kind on one market."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.spec import JobSpec
from headway.contract.values.devices import mix_name
from headway.contract.values.markets import Market, pool_name


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """A device kind on a market. Measured speeds belong to the kind; capacity, price and risk belong to the
    pool.

    `containers` is True if the pool's nodes can start containers. `apart` is True if other nodes of the kind
    on the market cannot, while some job needs it.
    """

    kind: str
    market: Market = Market.ON_DEMAND
    containers: bool = True
    apart: bool = False

    @property
    def name(self) -> str:
        """Name in messages, rows and prices: `a100`, `a100 (spot)` or `a100 (containers)`."""
        return self.priced_as + (" (containers)" if self.apart else "")

    @property
    def priced_as(self) -> str:
        """Name under which prices and risks are stored."""
        return pool_name(self.kind, self.market)

    def serves(self, spec: JobSpec) -> bool:
        """Return True if a job may have slots of the pool."""
        devices = spec.resources.devices
        runs = self.containers or spec.image is None
        return runs and (not devices or self.kind in devices) and spec.market in {"mixed", self.market.value}


def anchor_in(parts: Mapping[Pool, int]) -> int:
    """Return the number of on-demand slots of an allocation in both markets; 0 if it lies in one market."""
    held = {pool: count for pool, count in parts.items() if count}
    on_spot = any(pool.market is Market.SPOT for pool in held)
    return sum(count for pool, count in held.items() if pool.market is Market.ON_DEMAND and on_spot)


def device_kind_of(parts: Mapping[Pool, int]) -> str:
    """Return the device kind of slots by pool: `a100`, or of several kinds `a100:2+t4:2`."""
    slots: dict[str, int] = {}
    for pool, count in parts.items():
        slots[pool.kind] = slots.get(pool.kind, 0) + count
    return mix_name(slots)


def slots_of(count: int, kind: str | None) -> str:
    """Return a number of slots of a kind as text, such as `4 a100 slots`."""
    return " ".join(part for part in (str(count), kind, "slot" if count == 1 else "slots") if part)


def slots_in(parts: Mapping[Pool, int]) -> str:
    """Return slots by pool as text.

    Examples: `4 a100 (spot) slots`, `4 a100 slots (1 on-demand as anchor, 3 spot)`, `4 slots (2 a100 + 2 t4)`.
    """
    held = {pool: count for pool, count in sorted(parts.items()) if count}
    total = sum(held.values())
    if len(held) == 1:
        return slots_of(total, next(iter(held)).name)
    kinds = sorted({pool.kind for pool in held})
    if len(kinds) > 1:
        return (
            f"{slots_of(total, None)} ({' + '.join(f'{count} {pool.name}' for pool, count in held.items())})"
        )
    each = ", ".join(
        f"{count} {pool.market}{' as anchor' if pool.market is Market.ON_DEMAND else ''}"
        for pool, count in held.items()
    )
    return f"{slots_of(total, kinds[0])} ({each})" if held else slots_of(0, None)
