"""How a machine is paid for."""

from __future__ import annotations

from enum import StrEnum


class Market(StrEnum):
    """ON_DEMAND stays until it is given back; SPOT is cheaper and may be taken away at short notice."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
