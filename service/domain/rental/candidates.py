"""What might be rented: offers by market, and the nodes that they would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.devices import MOST_USD_PER_SLOT_H
from headway.contract.markets import Market
from service.domain.cluster import Node
from service.domain.rental.fleet import Place
from service.domain.rental.offers import Offer

_MOST_CANDIDATES = 24


@dataclass(frozen=True, slots=True)
class Candidate:
    """A type of machine on a market, with its price."""

    offer: Offer
    market: Market
    usd_per_h: float

    @property
    def place(self) -> Place:
        """Where it would be asked for."""
        offer = self.offer
        return Place(offer.provider, offer.region, offer.zone, offer.instance_type, self.market)

    @property
    def name(self) -> str:
        """For people."""
        where = f" in {self.offer.zone}" if self.offer.zone else ""
        return f"{self.market} {self.offer.instance_type}{where}"


def candidates_of(offers: Sequence[Offer]) -> list[Candidate]:
    """What can be bought, the cheapest slots of each pool first; so many that all can be weighed. A price that nobody
    would pay for a slot is a mistake of who says it, and no offer.
    """
    found = [
        Candidate(offer, market, price)
        for offer in offers
        for market in Market
        if (price := offer.usd_per_h(market)) is not None
        and 0 <= price <= MOST_USD_PER_SLOT_H * offer.devices
        and offer.devices > 0
    ]
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
    """A node that might be. It comes behind all that there are."""
    return Node(
        id=f"~{node_id}",
        name=node_id,
        state=NodeState.READY,
        slots=dict.fromkeys(range(slots), kind),
        market=market,
        usd_per_slot_h=usd_per_slot_h,
    )


def made_up(candidate: Candidate, count: int, serial: str) -> list[Node]:
    """The nodes of so many machines of it."""
    offer = candidate.offer
    per_slot = candidate.usd_per_h / offer.devices
    return [
        made_up_node(f"{serial}-{number}", offer.devices, offer.device_kind, candidate.market, per_slot)
        for number in range(count)
    ]
