"""Interruption rates of spot machines, learned from leases by type, zone and hour of the day. Pure.

A lease counts for the hours that it was paid for, and for a loss if its provider ended it. Both are weighted by
age with a half-life. The estimate has two levels, each the posterior mean of a Gamma distribution:

- The rate of a place is (prior * PRIOR_H + losses) / (PRIOR_H + hours). The prior is the catalogue's hazard.
- The rate of a place in a part of the day is the same, with the rate of the place as the prior and
  `PRIOR_PART_H` as its weight.

The parts of a day are `PART_H` hours long: a place with one machine is seen for four weighted hours in each
single hour of the day, which is too little. On the traces of "Can't Be Late" (NSDI'24), parts of four hours
predict interruptions better than one rate for the day does, and single hours predict them worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from service.domain.rental.machines import Machine
from service.domain.rental.offers import Offer
from service.domain.rental.spot.observations import (
    HALF_LIFE_H,
    LOST,
    REMEMBERED_H,
    spot_leases,
    weight,
    zone_of,
)
from service.domain.rental.spot.together import ZoneShares
from service.domain.shared.arrays import FloatArray, IntArray

PRIOR_H: Final = 24.0
"""Weight of the catalogue's hazard, in machine-hours of observation."""
PRIOR_PART_H: Final = 24.0
"""Weight of a place's rate as the prior of a part of the day, in machine-hours of observation."""
PART_H: Final = 4
"""Length of a part of the day in hours. The parts begin at midnight UTC."""
PARTS: Final = 24 // PART_H
COMING_H: Final = 4.0
"""Hours from now whose hazard counts for a machine."""

Place = tuple[str, str, str]
"""Provider, instance type and zone, or the region if the zone is unknown."""


def _no_parts() -> FloatArray:
    return np.zeros(PARTS)


@dataclass(frozen=True, slots=True, eq=False)
class HazardCounts:
    """Losses and machine-hours (PARTS,) by part of the day, weighted by age."""

    losses_by_part: FloatArray = field(default_factory=_no_parts)
    machine_h_by_part: FloatArray = field(default_factory=_no_parts)

    @property
    def losses(self) -> float:
        """Losses of all parts of the day."""
        return float(self.losses_by_part.sum())

    @property
    def machine_h(self) -> float:
        """Machine-hours of all parts of the day."""
        return float(self.machine_h_by_part.sum())

    def __add__(self, other: HazardCounts) -> HazardCounts:
        return HazardCounts(
            self.losses_by_part + other.losses_by_part, self.machine_h_by_part + other.machine_h_by_part
        )


def place_of_lease(lease: Machine) -> Place:
    """Return the place whose interruptions a lease shows."""
    return (lease.provider, lease.instance_type, zone_of(lease))


def hazard_counts(leases: Iterable[Machine], now: datetime) -> dict[Place, HazardCounts]:
    """Return the weighted counts of leases of spot machines by place.

    Leases on demand and leases of machines that never existed are ignored.
    """
    found: dict[Place, HazardCounts] = {}
    for one, since in spot_leases(leases):
        place = place_of_lease(one)
        found[place] = found.get(place, HazardCounts()) + _of_lease(one, since, now)
    return found


def hazard_per_h(prior_per_h: float, seen: HazardCounts) -> float:
    """Return the expected interruptions of a machine per hour, over the whole day."""
    return (max(prior_per_h, 0.0) * PRIOR_H + seen.losses) / (PRIOR_H + seen.machine_h)


def coming_hazard_per_h(prior_per_h: float, seen: HazardCounts, now: datetime) -> float:
    """Return the expected interruptions of a machine per hour in the `COMING_H` hours from now."""
    mean = hazard_per_h(prior_per_h, seen)
    by_part = (mean * PRIOR_PART_H + seen.losses_by_part) / (PRIOR_PART_H + seen.machine_h_by_part)
    _, hours = _parts_between(0.0, COMING_H, _hour_of(now))
    return float((by_part * hours).sum() / COMING_H)


def with_learned(
    offers: Iterable[Offer],
    seen: Mapping[Place, HazardCounts],
    now: datetime,
    together: ZoneShares,
) -> tuple[Offer, ...]:
    """Return the offers with the hazards of the coming hours, and the shares of common losses, of their places."""
    found = []
    for one in offers:
        zone = one.zone or one.region
        known = seen.get((one.provider, one.instance_type, zone))
        hazard = one.hazard_per_h if known is None else coming_hazard_per_h(one.hazard_per_h, known, now)
        found.append(replace(one, hazard_per_h=hazard, together=together.share(one.provider, zone)))
    return tuple(found)


def counts_by_kind(leases: Iterable[Machine], now: datetime) -> dict[str, HazardCounts]:
    """Return the weighted counts of leases of spot machines by device kind, over all places."""
    by_kind: dict[str, HazardCounts] = {}
    for one, since in spot_leases(leases):
        before = by_kind.get(one.device_kind, HazardCounts())
        by_kind[one.device_kind] = before + _of_lease(one, since, now)
    return by_kind


def hazards_by_kind(
    leases: Iterable[Machine], prior_per_h: Mapping[str, float], now: datetime
) -> dict[str, float]:
    """Return the interruptions per hour of a spot machine by device kind, for kinds that were rented or have a prior.

    All places of a kind count together, since a round does not choose between them.
    """
    by_kind = {**{kind: HazardCounts() for kind in prior_per_h}, **counts_by_kind(leases, now)}
    return {
        kind: coming_hazard_per_h(prior_per_h.get(kind, 0.0), seen, now)
        for kind, seen in sorted(by_kind.items())
    }


def _of_lease(lease: Machine, since: datetime, now: datetime) -> HazardCounts:
    until = min(lease.billed_to or now, now)
    began_h, ended_h = (max((now - one).total_seconds(), 0.0) / 3600 for one in (since, until))
    losses = np.zeros(PARTS)
    if lease.billed_to is not None and lease.reason in LOST:
        losses[_part_of(_hour_of(now) - ended_h)] = weight(ended_h)
    begins_h, _ = _parts_between(-began_h, -ended_h, _hour_of(now))
    ages = -begins_h
    # Integral of the weight over each piece of the lease.
    weights = np.where(ages > REMEMBERED_H, 0.0, 0.5 ** (ages / HALF_LIFE_H))
    pieces = HALF_LIFE_H / math.log(2) * np.maximum(weights[1:] - weights[:-1], 0.0)
    middles = (begins_h[1:] + begins_h[:-1]) / 2 + _hour_of(now)
    parts = (np.floor(middles / PART_H) % PARTS).astype(np.int64)
    return HazardCounts(losses, _by_part(parts, pieces))


def _parts_between(from_h: float, to_h: float, hour: float) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the pieces between two times, each in one part of a day, and the hours (PARTS,) by part.

    Times are in hours from now, when the time of the day is `hour`. Time that is too long ago is one piece.
    """
    first = max(from_h, min(-REMEMBERED_H, to_h))
    edges = (
        np.arange(math.ceil((first + hour) / PART_H), math.floor((to_h + hour) / PART_H) + 1) * PART_H - hour
    )
    inner = edges[(edges > first) & (edges < to_h)]
    ends = np.unique(np.concatenate([[min(from_h, to_h)], [first], inner, [to_h]]))
    parts = (np.floor(((ends[1:] + ends[:-1]) / 2 + hour) / PART_H) % PARTS).astype(np.int64)
    return ends, _by_part(parts, np.diff(ends))


def _by_part(parts: IntArray, values: FloatArray) -> FloatArray:
    """Return the sums (PARTS,) of values by their part of the day."""
    return np.bincount(parts, weights=values, minlength=PARTS).astype(np.float64)


def _hour_of(moment: datetime) -> float:
    at = moment.astimezone(UTC)
    return at.hour + at.minute / 60 + at.second / 3600


def _part_of(hour: float) -> int:
    return math.floor(hour / PART_H) % PARTS
