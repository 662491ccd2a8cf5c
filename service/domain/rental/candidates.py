"""Candidates for renting: offers by market, and the hypothetical nodes that they would become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.values.devices import MOST_USD_PER_SLOT_H
from headway.contract.values.markets import Market
from service.domain.cluster.snapshot import Node
from service.domain.rental.fleet import RentalPlace
from service.domain.rental.offers import Offer

_MOST_CANDIDATES = 24


@dataclass(frozen=True, slots=True)
class Candidate:
    """Type of machine on a market, with its price."""

    offer: Offer
    market: Market
    usd_per_h: float

    @property
    def place(self) -> RentalPlace:
        """Place where the machine would be launched."""
        offer = self.offer
        return RentalPlace(offer.provider, offer.region, offer.zone, offer.instance_type, self.market)

    @property
    def name(self) -> str:
        """Name of the candidate for users."""
        where = f" in {self.offer.zone}" if self.offer.zone else ""
        return f"{self.market} {self.offer.instance_type}{where}"


def priced(offers: Sequence[Offer]) -> list[Candidate]:
    """Return the offers by market that can be rented.

    A price beyond `MOST_USD_PER_SLOT_H` is an error of its source and is ignored.
    """
    return [
        Candidate(offer, market, price)
        for offer in offers
        for market in Market
        if (price := offer.usd_per_h(market)) is not None
        and 0 <= price <= MOST_USD_PER_SLOT_H * offer.devices
        and offer.devices > 0
    ]


def candidates_of(offers: Sequence[Offer]) -> list[Candidate]:
    """Return the candidates, the cheapest slots of each pool first, limited to a number that can all be evaluated."""
    found = priced(offers)
    found.sort(key=lambda one: (one.usd_per_h / one.offer.devices, one.usd_per_h, one.name))
    ranks: dict[tuple[str, Market], int] = {}
    ranked = []
    for one in found:
        pool = one.offer.device_kind, one.market
        ranked.append((ranks.setdefault(pool, 0), one))
        ranks[pool] += 1
    ranked.sort(key=lambda pair: pair[0])
    return [one for _, one in ranked[:_MOST_CANDIDATES]]


def made_up_node(node_id: str, slots: int, kind: str, market: Market, usd_per_slot_h: float) -> Node:
    """Return a hypothetical node. Its id sorts after the ids of all real nodes."""
    return Node(
        id=f"~{node_id}",
        name=node_id,
        state=NodeState.READY,
        slots=dict.fromkeys(range(slots), kind),
        market=market,
        usd_per_slot_h=usd_per_slot_h,
    )


def made_up(candidate: Candidate, count: int, serial: str) -> list[Node]:
    """Return the hypothetical nodes of `count` machines of a candidate."""
    offer = candidate.offer
    per_slot = candidate.usd_per_h / offer.devices
    return [
        made_up_node(f"{serial}-{number}", offer.devices, offer.device_kind, candidate.market, per_slot)
        for number in range(count)
    ]
