"""Interruption rates of spot machines, learned from leases by type and zone, with exponential forgetting. Pure.

A lease counts for the hours that it was paid for, and for a loss if its provider ended it. Both are weighted
by age with a half-life. The catalogue's hazard is the prior: a Gamma distribution worth `PRIOR_H`
machine-hours. The posterior mean is (prior * PRIOR_H + losses) / (PRIOR_H + hours).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from headway.contract.values.markets import Market
from service.domain.rental.machines import Machine, MachineReason
from service.domain.rental.offers import Offer

PRIOR_H: Final = 24.0
"""Weight of the catalogue's hazard, in machine-hours of observation."""
HALF_LIFE_H: Final = 72.0
"""Half-life of observations in hours. Spot markets change within days."""
REMEMBERED_H: Final = 10 * HALF_LIFE_H
"""Age in hours beyond which observations are ignored."""
LOST: Final = frozenset(
    {MachineReason.SPOT_RECLAIMED, MachineReason.ENDED_BY_PROVIDER, MachineReason.VANISHED}
)
"""Reasons that count as an interruption by the provider."""

Place = tuple[str, str, str]
"""Provider, instance type and zone, or the region if the zone is unknown."""


@dataclass(frozen=True, slots=True)
class HazardCounts:
    """Losses and machine-hours, weighted by age."""

    losses: float = 0.0
    machine_h: float = 0.0

    def __add__(self, other: HazardCounts) -> HazardCounts:
        return HazardCounts(self.losses + other.losses, self.machine_h + other.machine_h)


def hazard_counts(leases: Iterable[Machine], now: datetime) -> dict[Place, HazardCounts]:
    """Return the weighted counts of leases of spot machines by place.

    Leases on demand and leases of machines that never existed are ignored.
    """
    found: dict[Place, HazardCounts] = {}
    for one in leases:
        if one.market is not Market.SPOT or one.billed_from is None:
            continue
        place = (one.provider, one.instance_type, one.zone or one.region)
        found[place] = found.get(place, HazardCounts()) + _of_lease(one, one.billed_from, now)
    return found


def hazard_per_h(prior_per_h: float, seen: HazardCounts) -> float:
    """Return the expected interruptions of a machine per hour."""
    return (max(prior_per_h, 0.0) * PRIOR_H + seen.losses) / (PRIOR_H + seen.machine_h)


def with_learned(offers: Iterable[Offer], seen: Mapping[Place, HazardCounts]) -> tuple[Offer, ...]:
    """Return the offers with the hazards learned from leases in their places."""
    found = []
    for one in offers:
        known = seen.get((one.provider, one.instance_type, one.zone or one.region))
        if known is None:
            found.append(one)
        else:
            found.append(replace(one, hazard_per_h=hazard_per_h(one.hazard_per_h, known)))
    return tuple(found)


def hazards_by_kind(
    leases: Iterable[Machine], prior_per_h: Mapping[str, float], now: datetime
) -> dict[str, float]:
    """Return the interruptions per hour of a spot machine by device kind, for kinds that were rented or have a prior.

    All places of a kind count together, since a round does not choose between them.
    """
    by_kind: dict[str, HazardCounts] = {kind: HazardCounts() for kind in prior_per_h}
    for one in leases:
        if one.market is Market.SPOT and one.billed_from is not None:
            before = by_kind.get(one.device_kind, HazardCounts())
            by_kind[one.device_kind] = before + _of_lease(one, one.billed_from, now)
    return {kind: hazard_per_h(prior_per_h.get(kind, 0.0), seen) for kind, seen in sorted(by_kind.items())}


def _of_lease(lease: Machine, since: datetime, now: datetime) -> HazardCounts:
    until = min(lease.billed_to or now, now)
    began_h, ended_h = (max((now - one).total_seconds(), 0.0) / 3600 for one in (since, until))
    # Integral of the weight over the lease.
    hours = HALF_LIFE_H / math.log(2) * max(_weight(ended_h) - _weight(began_h), 0.0)
    lost = lease.billed_to is not None and lease.reason in LOST
    return HazardCounts(_weight(ended_h) if lost else 0.0, hours)


def _weight(age_h: float) -> float:
    return 0.0 if age_h > REMEMBERED_H else 0.5 ** (age_h / HALF_LIFE_H)
