"""Markets, on which a machine is paid for, and the names of slot pools."""

from __future__ import annotations

from enum import StrEnum


class Market(StrEnum):
    """ON_DEMAND machines stay until given back. SPOT machines are cheaper and may be reclaimed at short notice."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


def pool_name(device_kind: str, market: Market) -> str:
    """Return the name of the pool of a device kind on a market: `a100`, or `a100 (spot)`."""
    return f"{device_kind} (spot)" if market is Market.SPOT else device_kind
