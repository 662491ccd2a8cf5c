"""Pools: slots of one device kind that are paid for in one way, and that differ in nothing else that a job could need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.markets import Market, pool_name
from headway.contract.spec import JobSpec


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """A device kind on a market. Whatever is learned of speed is learned of the kind; room, price and risk are the
    pool's.

    `containers`: whether its nodes can start containers. `apart`: there are others of the kind on the market that cannot, and
    some job needs it.
    """

    kind: str
    market: Market = Market.ON_DEMAND
    containers: bool = True
    apart: bool = False

    @property
    def name(self) -> str:
        """For people, rows and prices: `a100`, `a100 (spot)`, or `a100 (containers)`."""
        return self.priced_as + (" (containers)" if self.apart else "")

    @property
    def priced_as(self) -> str:
        """The name by which prices and risks are known."""
        return pool_name(self.kind, self.market)

    def serves(self, spec: JobSpec) -> bool:
        """Whether a job may have slots of it."""
        devices = spec.resources.devices
        runs = self.containers or spec.image is None
        return runs and (not devices or self.kind in devices) and spec.market in {"mixed", self.market.value}


def anchor_in(parts: Mapping[Pool, int]) -> int:
    """The slots on-demand of what lies in several pools; 0 where everything lies in one."""
    held = {pool: count for pool, count in parts.items() if count}
    return sum(count for pool, count in held.items() if pool.market is Market.ON_DEMAND and len(held) > 1)


def slots_of(count: int, kind: str | None) -> str:
    """So many slots of a kind, for people."""
    return " ".join(part for part in (str(count), kind, "slot" if count == 1 else "slots") if part)


def slots_in(parts: Mapping[Pool, int]) -> str:
    """What lies in these pools, for people: `4 a100 (spot) slots`, `4 a100 slots (1 on-demand as anchor, 3 spot)`."""
    held = {pool: count for pool, count in sorted(parts.items()) if count}
    total = sum(held.values())
    if len(held) == 1:
        return slots_of(total, next(iter(held)).name)
    kinds = sorted({pool.kind for pool in held})
    each = ", ".join(
        f"{count} {pool.market}{' as anchor' if pool.market is Market.ON_DEMAND else ''}"
        for pool, count in held.items()
    )
    return f"{slots_of(total, ' and '.join(kinds))} ({each})" if held else slots_of(0, None)
