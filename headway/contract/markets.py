"""How a machine is paid for."""

from __future__ import annotations

from enum import StrEnum


class Market(StrEnum):
    """ON_DEMAND stays until it is given back; SPOT is cheaper and may be taken away at short notice."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


def pool_name(device_kind: str, market: Market) -> str:
    """The name of the slots of a kind that are paid for in one way: `a100`, or `a100 (spot)`."""
    return f"{device_kind} (spot)" if market is Market.SPOT else device_kind
