"""DeepVM's rating of plans (CCGrid'24), as in its released code: scaled FLOP per dollar. Pure.

    FLOPP(v) = flops(v) / spot price(v) * 3600                                         FLOP per dollar
    S(n) = c / (1 + exp(-a (n - b)))                                                   fitted speedup of n machines
    L(n) = S'(b) (n - b) + S(b),   S'(b) = c a / 4,   S(b) = c / 2                     tangent at the inflection point
    K(n) = 1 for n <= b, else S(n) / L(n)
    Z = n * FLOPP(v) * K(n)                                                            value of a plan

The rating spends an hourly budget: within the measured range, up to 32 machines, more machines always have a
higher value. It considers neither the time nor the cost of a job to its end, nor the cost of interruptions.
K(n) is 1 up to b and so hides that two machines may be slower than one. The rating serves for comparison
only. It differs from the released code in two points: a quota may be used up (the ranges of the code stop one
short), and plans of equal value are ordered by their price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headway.contract.values.markets import Market
from service.domain.rental.architectures import best
from service.domain.rental.catalogue import GIB
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachinePlan, PlanLimits, WorkerChoice, quota_of

CHECKPOINT_BYTES: Final = 2 * GIB
"""Default size of the checkpoint in DeepVM."""
BUFFER: Final = 0.5
"""Share of the checkpoint that a remote node must hold in memory."""
QUOTAS: Final = MappingProxyType(
    {"g/spot": 128, "g/on-demand": 32}
    | {f"{letter}/{market}": 256 for letter in "cdmt" for market in ("spot", "on-demand")}
)
"""vCPU quotas of an account, by family of types and market."""

_MOST_MACHINES: Final = 128
"""Largest number of machines considered: four times the measured range, beyond which the curves are not valid."""


@dataclass(frozen=True, slots=True)
class Rating:
    """DeepVM's measurements of a type: `flops` in its own unit, and the parameters of its speedup curve."""

    flops: float
    a: float
    b: float
    c: float

    def speedup(self, machines: float) -> float:
        """Return the fitted speedup S."""
        return self.c / (1 + math.exp(-self.a * (machines - self.b)))

    def tangent(self, machines: float) -> float:
        """Return the tangent L of the speedup."""
        return self.c * self.a / 4 * (machines - self.b) + self.c / 2

    def scaling(self, machines: float) -> float:
        """Return the scaling factor K."""
        return 1.0 if machines <= self.b else self.speedup(machines) / self.tangent(machines)


RATINGS: Final[Mapping[str, Rating]] = MappingProxyType(
    {
        "g3s.xlarge": Rating(100, 0.1408559584, 14.49263334, 13.53250952),
        "g4dn.xlarge": Rating(377, 0.1338806402, 12.87424514, 6.176666667),
        "g5.xlarge": Rating(696, 0.08533428072, 20.06669931, 4.962225551),
    }
)
"""Ratings of the measured types. Other types cannot be rated."""


def flop_per_usd(offer: Offer, rating: Rating) -> float:
    """Return FLOPP in DeepVM's unit, 0 if the type is not sold on spot."""
    return rating.flops / offer.spot_usd_per_h * 3600 if offer.spot_usd_per_h else 0.0


def value(offer: Offer, rating: Rating, machines: int) -> float:
    """Return the value Z of a plan."""
    return machines * flop_per_usd(offer, rating) * rating.scaling(machines)


def plans(
    offers: Sequence[Offer],
    *,
    max_usd_per_h: float,
    checkpoint_bytes: float = CHECKPOINT_BYTES,
    buffer: float = BUFFER,
    quotas: Mapping[str, int] = QUOTAS,
    count: int = 3,
    architectures: Sequence[Architecture] = (Architecture.TIERING, Architecture.SINGLE_ANCHOR),
) -> list[tuple[float, MachinePlan]]:
    """Return the plans of highest value with their Z, by default of both published architectures; empty if the
    budget allows none.
    """
    limits = PlanLimits(
        max_usd_per_h=max_usd_per_h, vcpus=quotas, checkpoint_bytes=checkpoint_bytes, buffer=buffer
    )
    rows = _rows(offers, limits)
    found: list[tuple[float, MachinePlan]] = []
    for architecture in architectures:
        known: list[MachinePlan] = []
        while len(known) < count:
            plan = best(architecture, offers, rows, limits, exclude=known)
            if plan is None:
                break
            known.append(plan)
            workers = plan.groups[0].offer
            found.append((value(workers, RATINGS[workers.instance_type], plan.workers), plan))
    found.sort(key=lambda one: (-one[0], one[1].usd_per_h))
    return found[:count]


def _rows(offers: Sequence[Offer], limits: PlanLimits) -> list[WorkerChoice]:
    """Return every number of machines of every rated type that budget and quota could allow."""
    rows = []
    for index, offer in enumerate(offers):
        rating = RATINGS.get(offer.instance_type)
        if rating is None or not offer.spot_usd_per_h:
            continue
        most = _MOST_MACHINES
        quota = quota_of(offer, Market.SPOT, limits)
        if quota is not None and offer.vcpus:
            most = min(most, quota // offer.vcpus)
        if limits.max_usd_per_h is not None:
            most = min(most, int(limits.max_usd_per_h / offer.spot_usd_per_h + 1e-9))
        rows += [
            WorkerChoice(index, machines, value(offer, rating, machines)) for machines in range(1, most + 1)
        ]
    return rows
