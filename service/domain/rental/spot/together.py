"""Common losses: the share of lost machines whose zone loses all of its machines at once, learned by zone. Pure.

Losses of a zone that follow each other within `WINDOW_S` are one event. It counts if the zone had several machines,
by the number of machines that it took. The prior is a Beta distribution with the mean of the published traces,
worth `PRIOR_LOSSES` lost machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.domain.cluster.spot_rate import TOGETHER
from service.domain.rental.machines import Machine
from service.domain.rental.spot.observations import LOST, spot_leases, weight, zone_of

WINDOW_S: Final = 120.0
"""Longest time between the first and the last loss of one event, in seconds."""
PRIOR_LOSSES: Final = 8.0
"""Weight of the prior, in lost machines."""

Zone = tuple[str, str]
"""Provider and zone, or the region if the zone is unknown."""


@dataclass(frozen=True, slots=True)
class ZoneShares:
    """Shares of common losses by zone."""

    by_zone: Mapping[Zone, float] = field(default_factory=dict)

    def share(self, provider: str, zone: str) -> float:
        """Return the share of lost machines that go with all machines of the zone."""
        return self.by_zone.get((provider, zone), TOGETHER)


def zone_shares(leases: Iterable[Machine], now: datetime) -> ZoneShares:
    """Return the shares learned from leases of spot machines. Older observations count for less."""
    by_zone: dict[Zone, list[Machine]] = {}
    for one, _ in spot_leases(leases):
        by_zone.setdefault((one.provider, zone_of(one)), []).append(one)
    return ZoneShares({zone: _share(of_zone, now) for zone, of_zone in by_zone.items()})


def _share(leases: Sequence[Machine], now: datetime) -> float:
    lost, together = 0.0, 0.0
    for present, taken, at in _events(leases):
        if present > 1:
            counts = taken * weight((now - at).total_seconds() / 3600)
            lost += counts
            together += counts * (taken == present)
    return (TOGETHER * PRIOR_LOSSES + together) / (PRIOR_LOSSES + lost)


def _events(leases: Sequence[Machine]) -> Iterable[tuple[int, int, datetime]]:
    """Yield each event: the machines that the zone had, the machines that it took, and its time."""
    losses = sorted(one.billed_to for one in leases if one.billed_to is not None and one.reason in LOST)
    index = 0
    while index < len(losses):
        at = losses[index]
        end = at + timedelta(seconds=WINDOW_S)
        taken = sum(at <= one <= end for one in losses[index:])
        present = sum(
            one.billed_from is not None
            and one.billed_from < at
            and (one.billed_to is None or one.billed_to >= at)
            for one in leases
        )
        yield present, min(taken, present), at
        index += taken
