"""Weights of observed interruptions: exponential forgetting, and the reasons that count as a loss. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from headway.contract.values.markets import Market
from service.domain.rental.machines import Machine, MachineReason

HALF_LIFE_H: Final = 72.0
"""Half-life of observations in hours. Spot markets change within days."""
REMEMBERED_H: Final = 10 * HALF_LIFE_H
"""Age in hours beyond which observations are ignored."""
LOST: Final = frozenset(
    {MachineReason.SPOT_RECLAIMED, MachineReason.ENDED_BY_PROVIDER, MachineReason.VANISHED}
)
"""Reasons that count as an interruption by the provider."""


def spot_leases(leases: Iterable[Machine]) -> Iterator[tuple[Machine, datetime]]:
    """Yield the leases of spot machines that existed, each with the time from which it was paid for."""
    for one in leases:
        if one.market is Market.SPOT and one.billed_from is not None:
            yield one, one.billed_from


def zone_of(lease: Machine) -> str:
    """Return the zone of a lease, or its region if the zone is unknown."""
    return lease.zone or lease.region


def weight(age_h: float) -> float:
    """Return the weight of an observation of an age in hours."""
    return 0.0 if age_h > REMEMBERED_H else 0.5 ** (max(age_h, 0.0) / HALF_LIFE_H)
