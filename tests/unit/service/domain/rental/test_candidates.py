"""Tests of the candidates for renting, their order, and the hypothetical nodes that they become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.devices import MOST_USD_PER_SLOT_H
from headway.contract.values.markets import Market
from service.domain.rental.candidates import Candidate, candidates_of, made_up, made_up_node
from service.domain.rental.fleet import RentalPlace
from service.domain.rental.offers import Offer
from tests.unit.service.domain.rental.examples import ON_DEMAND, SPOT, offer_of

MOST = 24
"""Largest number of candidates."""


def one_market(name: str, usd_per_h: float, **fields: Any) -> Offer:
    return offer_of(name, on_demand_usd_per_h=usd_per_h, spot_usd_per_h=None, **fields)


def names(offers: list[Offer]) -> list[str]:
    return [one.name for one in candidates_of(offers)]


def test_no_offers_are_no_candidates() -> None:
    assert candidates_of([]) == []


def test_an_offer_is_a_candidate_on_each_market_that_it_is_sold_on() -> None:
    both = candidates_of([offer_of(on_demand_usd_per_h=1.0, spot_usd_per_h=0.3)])
    assert [(one.market, one.usd_per_h) for one in both] == [(SPOT, 0.3), (ON_DEMAND, 1.0)]
    assert names([offer_of(spot_usd_per_h=None)]) == ["on-demand g1.small"]
    assert names([offer_of(on_demand_usd_per_h=None)]) == ["spot g1.small"]


@pytest.mark.parametrize(
    ("devices", "usd_per_h", "kept"),
    [
        (1, 0.0, True),
        (1, MOST_USD_PER_SLOT_H, True),
        (1, MOST_USD_PER_SLOT_H * 1.01, False),
        (4, MOST_USD_PER_SLOT_H * 4, True),
        (4, MOST_USD_PER_SLOT_H * 4.01, False),
        (1, -0.01, False),
        (0, 0.0, False),
        (0, 1.0, False),
    ],
)
def test_a_price_has_to_be_one_that_a_slot_can_have(devices: int, usd_per_h: float, *, kept: bool) -> None:
    assert bool(names([one_market("g", usd_per_h, devices=devices)])) is kept


def test_the_cheapest_slots_of_a_pool_come_first() -> None:
    offers = [
        one_market("dear", 3.0),
        one_market("wide", 4.0, devices=4),
        one_market("cheap", 0.9),
        one_market("small", 1.0, devices=1),
    ]
    assert names(offers) == ["on-demand cheap", "on-demand small", "on-demand wide", "on-demand dear"]


def test_of_slots_at_one_price_those_of_the_cheaper_machine_come_first_and_then_names_decide() -> None:
    offers = [one_market("b", 2.0, devices=2), one_market("z", 1.0), one_market("a", 1.0)]
    assert names(offers) == ["on-demand a", "on-demand z", "on-demand b"]


def test_pools_take_turns_so_that_a_cheap_one_leaves_room_for_the_others() -> None:
    offers = [one_market(f"cpu{number:02}", 0.1, device_kind="cpu") for number in range(40)]
    offers += [one_market(f"gpu{number:02}", 9.0) for number in range(3)]
    found = candidates_of(offers)
    assert len(found) == MOST
    assert [one.offer.device_kind for one in found[:7]] == ["cpu", "t4", "cpu", "t4", "cpu", "t4", "cpu"]
    assert sum(one.offer.device_kind == "t4" for one in found) == 3


def test_a_kind_on_another_market_is_another_pool() -> None:
    offers = [offer_of(f"g{number}", on_demand_usd_per_h=5.0, spot_usd_per_h=1.0) for number in range(2)]
    assert [one.market for one in candidates_of(offers)] == [SPOT, ON_DEMAND, SPOT, ON_DEMAND]


offers_of = st.lists(
    st.builds(
        offer_of,
        name=st.sampled_from(["a", "b", "c"]),
        zone=st.sampled_from(["", "1", "2"]),
        device_kind=st.sampled_from(["cpu", "t4"]),
        devices=st.integers(0, 4),
        on_demand_usd_per_h=st.none() | st.integers(-1, 9).map(float),
        spot_usd_per_h=st.none() | st.integers(-1, 9).map(float),
    ),
    max_size=20,
)


@settings(max_examples=50)
@given(offers_of)
def test_candidates_are_valid_few_and_the_cheapest_of_each_pool(offers: list[Offer]) -> None:
    found = candidates_of(offers)
    assert len(found) <= MOST
    for one in found:
        assert one.offer in offers
        assert one.usd_per_h == one.offer.usd_per_h(one.market)
        assert one.usd_per_h >= 0
    for market in Market:
        for kind in ("cpu", "t4"):
            pool = [one for one in found if (one.offer.device_kind, one.market) == (kind, market)]
            per_slot = [one.usd_per_h / one.offer.devices for one in pool]
            assert per_slot == sorted(per_slot)
            cheapest = min(
                (
                    price / one.devices
                    for one in offers
                    if one.device_kind == kind
                    and one.devices
                    and (price := one.usd_per_h(market)) is not None
                    and price >= 0
                ),
                default=None,
            )
            assert (per_slot[0] if per_slot else None) == cheapest


@settings(max_examples=30)
@given(offers_of)
def test_the_order_of_offers_does_not_matter(offers: list[Offer]) -> None:
    def prices(given_offers: list[Offer]) -> list[tuple[str, Market, float]]:
        return [(one.name, one.market, one.usd_per_h) for one in candidates_of(given_offers)]

    if len(offers) * 2 <= MOST:
        assert sorted(prices(offers)) == sorted(prices(offers[::-1]))


def test_a_candidate_names_its_market_type_and_zone() -> None:
    offer = offer_of("g1", zone="us-east-1a")
    candidate = Candidate(offer, SPOT, 0.3)
    assert candidate.name == "spot g1 in us-east-1a"
    assert Candidate(offer_of("g1"), ON_DEMAND, 1.0).name == "on-demand g1"
    assert candidate.place == RentalPlace("p", "r", "us-east-1a", "g1", SPOT)


def test_a_hypothetical_node_is_ready_and_sorts_after_real_nodes() -> None:
    node = made_up_node("m1", 3, "t4", SPOT, 0.5)
    assert (node.id, node.name, node.state) == ("~m1", "m1", NodeState.READY)
    assert node.slots == {0: "t4", 1: "t4", 2: "t4"}
    assert (node.market, node.usd_per_slot_h) == (SPOT, 0.5)
    assert max(node.id, "zebra", "n1", "Z") == node.id


@pytest.mark.parametrize("count", [0, 1, 3])
def test_machines_of_a_candidate_become_nodes_that_share_its_price_among_their_slots(count: int) -> None:
    candidate = Candidate(offer_of(devices=4), ON_DEMAND, 2.0)
    nodes = made_up(candidate, count, "want-0")
    assert [node.id for node in nodes] == [f"~want-0-{number}" for number in range(count)]
    assert all(len(node.slots) == 4 and node.usd_per_slot_h == 0.5 for node in nodes)
    assert all(node.market is ON_DEMAND for node in nodes)
