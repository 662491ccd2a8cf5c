"""Risks of spot machines in the coming hours, from the leases of this cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headway.contract.values.markets import Market, pool_name
from service.domain.rental.machines import Machine
from service.domain.rental.spot.hazards import (
    HazardCounts,
    coming_hazard_per_h,
    hazard_counts,
    hazards_by_kind,
    place_of_lease,
)
from service.domain.rental.spot.observations import zone_of
from service.domain.rental.spot.together import zone_shares


@dataclass(frozen=True, slots=True)
class SpotRisk:
    """Expected interruptions of a machine per hour, and the share of them that take all machines of its zone."""

    per_h: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotHistory:
    """Learned risks.

    `by_pool` are the interruptions of a machine per hour by the name of its pool. `by_machine` are the risks of
    rented spot machines in their places.
    """

    by_pool: Mapping[str, float]
    by_machine: Mapping[str, SpotRisk]


NO_HISTORY = SpotHistory(by_pool={}, by_machine={})


def spot_history(leases: Sequence[Machine], prior_per_h: Mapping[str, float], now: datetime) -> SpotHistory:
    """Return the risks by kind for the kinds with a prior, and those of all open leases on spot.

    A place without a loss of its own has the prior of its kind.
    """
    by_place, shares = hazard_counts(leases, now), zone_shares(leases, now)
    by_kind = hazards_by_kind(leases, prior_per_h, now)
    by_machine = {}
    for one in leases:
        if one.market is not Market.SPOT or one.billed_to is not None:
            continue
        seen = by_place.get(place_of_lease(one), HazardCounts())
        by_machine[one.id] = SpotRisk(
            coming_hazard_per_h(prior_per_h.get(one.device_kind, 0.0), seen, now),
            shares.share(one.provider, zone_of(one)),
        )
    return SpotHistory(
        by_pool={pool_name(kind, Market.SPOT): per_h for kind, per_h in by_kind.items()},
        by_machine=by_machine,
    )
