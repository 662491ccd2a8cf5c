"""Tests of the price of an offer by market."""

from __future__ import annotations

import pytest

from headway.contract.values.markets import Market
from tests.unit.service.domain.rental.examples import ON_DEMAND, SPOT, offer_of


@pytest.mark.parametrize(
    ("on_demand", "spot", "prices"),
    [
        (1.0, 0.3, {ON_DEMAND: 1.0, SPOT: 0.3}),
        (1.0, None, {ON_DEMAND: 1.0, SPOT: None}),
        (None, 0.3, {ON_DEMAND: None, SPOT: 0.3}),
        (None, None, {ON_DEMAND: None, SPOT: None}),
        (0.0, 0.0, {ON_DEMAND: 0.0, SPOT: 0.0}),
    ],
)
def test_each_market_has_its_price_or_none(
    on_demand: float | None, spot: float | None, prices: dict[Market, float | None]
) -> None:
    offer = offer_of(on_demand_usd_per_h=on_demand, spot_usd_per_h=spot)
    assert {market: offer.usd_per_h(market) for market in Market} == prices


def test_equal_facts_are_equal_offers_and_one_key_of_a_mapping() -> None:
    assert {offer_of(): 1, offer_of(): 2} == {offer_of(): 2}
    assert offer_of(zone="a") != offer_of(zone="b")
