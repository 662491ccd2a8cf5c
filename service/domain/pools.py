"""Pools: slots of one device kind that are paid for in one way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.contract.markets import Market

_SPOT = " (spot)"


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """A device kind on a market. Whatever is learned of speed is learned of the kind; room, price and risk are the
    pool's.
    """

    kind: str
    market: Market = Market.ON_DEMAND

    @property
    def name(self) -> str:
        """For people, rows and prices: `a100`, or `a100 (spot)`."""
        return pool_name(self.kind, self.market)


def pool_name(kind: str, market: Market) -> str:
    """The name of the pool of a kind on a market."""
    return kind + _SPOT if market is Market.SPOT else kind


def pool_named(name: str) -> Pool:
    """The pool of a name, as `pool_name` gives it."""
    if name.endswith(_SPOT):
        return Pool(name.removesuffix(_SPOT), Market.SPOT)
    return Pool(name)


def names_of(pools: Iterable[Pool]) -> str:
    """Pools for people."""
    return " or ".join(pool.name for pool in sorted(set(pools)))
