"""DeepVM's own rating of plans (CCGrid'24), as its released code has it: FLOP per dollar, scaled. Pure.

    FLOPP(v) = flops(v) / spot price(v) * 3600                                         FLOP per dollar
    S(n) = c / (1 + exp(-a (n - b)))                                                   fitted speedup of n machines
    L(n) = S'(b) (n - b) + S(b),   S'(b) = c a / 4,   S(b) = c / 2                     its tangent where it turns
    K(n) = 1 for n <= b, else S(n) / L(n)
    Z = n * FLOPP(v) * K(n)                                                            what a plan is worth

It spends an hourly budget: more machines are always worth more. It looks neither at the time nor at the cost of a job to its
end, nor at what machines that are taken away cost; K(n) is 1 up to b and so hides that two machines may be slower than one.
It is here to compare with. Two things differ from the released code: a quota may be used up (its ranges stop one short),
and all plans of one value are ordered by their price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from service.domain.rental.architectures import best, machines_within_quota
from service.domain.rental.catalogue import GIB
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, Limits, Plan, Row

CHECKPOINT_BYTES: Final = 2 * GIB
"""The checkpoint that DeepVM plans for unless told otherwise,"""
BUFFER: Final = 0.5
"""and the share of it that a remote node must hold in memory."""
QUOTAS: Final = MappingProxyType(
    {"g/spot": 128, "g/on-demand": 32}
    | {f"{letter}/{market}": 256 for letter in "cdmt" for market in ("spot", "on-demand")}
)
"""vCPUs of an account, by family of types and market."""

_MOST_MACHINES: Final = 128
"""Four times what was measured: beyond that the curves say nothing."""


@dataclass(frozen=True, slots=True)
class Rating:
    """What DeepVM measured of a type: `flops` in its own unit, and its speedup's curve."""

    flops: float
    a: float
    b: float
    c: float

    def speedup(self, machines: float) -> float:
        """S."""
        return self.c / (1 + math.exp(-self.a * (machines - self.b)))

    def tangent(self, machines: float) -> float:
        """L."""
        return self.c * self.a / 4 * (machines - self.b) + self.c / 2

    def scaling(self, machines: float) -> float:
        """K."""
        return 1.0 if machines <= self.b else self.speedup(machines) / self.tangent(machines)


RATINGS: Final[Mapping[str, Rating]] = MappingProxyType(
    {
        "g3s.xlarge": Rating(100, 0.1408559584, 14.49263334, 13.53250952),
        "g4dn.xlarge": Rating(377, 0.1338806402, 12.87424514, 6.176666667),
        "g5.xlarge": Rating(696, 0.08533428072, 20.06669931, 4.962225551),
    }
)
"""Of the types that were measured; no others can be rated."""


def flop_per_usd(offer: Offer, rating: Rating) -> float:
    """FLOPP, in DeepVM's unit; 0 where the type is not sold on spot."""
    return rating.flops / offer.spot_usd_per_h * 3600 if offer.spot_usd_per_h else 0.0


def value(offer: Offer, rating: Rating, machines: int) -> float:
    """Z."""
    return machines * flop_per_usd(offer, rating) * rating.scaling(machines)


def plans(
    offers: Sequence[Offer],
    *,
    max_usd_per_h: float,
    checkpoint_bytes: float = CHECKPOINT_BYTES,
    buffer: float = BUFFER,
    quotas: Mapping[str, int] = QUOTAS,
    count: int = 3,
) -> list[tuple[float, Plan]]:
    """The plans that are worth most, with their Z, of tiering and single anchor; empty where the money buys none."""
    limits = Limits(
        max_usd_per_h=max_usd_per_h, vcpus=quotas, checkpoint_bytes=checkpoint_bytes, buffer=buffer
    )
    rows = _rows(offers, limits)
    found: list[tuple[float, Plan]] = []
    for architecture in (Architecture.TIERING, Architecture.SINGLE_ANCHOR):
        known: list[Plan] = []
        while len(known) < count:
            plan = best(architecture, offers, rows, limits, exclude=known)
            if plan is None:
                break
            known.append(plan)
            workers = plan.groups[0].offer
            found.append((value(workers, RATINGS[workers.instance_type], plan.workers), plan))
    found.sort(key=lambda one: (-one[0], one[1].usd_per_h))
    return found[:count]


def cost_first(offers: Sequence[Offer], *, max_usd_per_h: float) -> Plan | None:
    """The baseline that takes as many machines as the money buys, with a single anchor."""
    limits = Limits(max_usd_per_h=max_usd_per_h, vcpus=QUOTAS)
    rows = [Row(one.offer, one.machines, float(one.machines)) for one in _rows(offers, limits)]
    return best(Architecture.SINGLE_ANCHOR, offers, rows, limits)


def performance_first(offers: Sequence[Offer], *, max_usd_per_h: float) -> Plan | None:
    """The baseline that takes the fastest type that the money buys, and as many as it buys, with a single anchor."""
    limits = Limits(max_usd_per_h=max_usd_per_h, vcpus=QUOTAS)
    rows = _rows(offers, limits)
    for name in sorted(RATINGS, key=lambda one: -RATINGS[one].flops):
        of_type = [
            Row(one.offer, one.machines, float(one.machines))
            for one in rows
            if offers[one.offer].instance_type == name
        ]
        plan = best(Architecture.SINGLE_ANCHOR, offers, of_type, limits)
        if plan is not None:
            return plan
    return None


def _rows(offers: Sequence[Offer], limits: Limits) -> list[Row]:
    """Every number of machines of every rated type that money and quota could allow."""
    rows = []
    for index, offer in enumerate(offers):
        rating = RATINGS.get(offer.instance_type)
        if rating is None or not offer.spot_usd_per_h:
            continue
        most = min(machines_within_quota(offer, limits), _MOST_MACHINES)
        if limits.max_usd_per_h is not None:
            most = min(most, int(limits.max_usd_per_h / offer.spot_usd_per_h + 1e-9))
        rows += [Row(index, machines, value(offer, rating, machines)) for machines in range(1, most + 1)]
    return rows
