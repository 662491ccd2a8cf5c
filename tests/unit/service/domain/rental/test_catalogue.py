"""Tests of the offers that the catalogue keeps, prefers and rejects."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.devices import KNOWN_DEVICE_KINDS
from headway.contract.values.markets import Market
from service.domain.rental.catalogue import BUILT_IN, merged, selected, usd
from service.domain.rental.offers import Offer
from service.domain.shared.errors import InvalidField

NOW = datetime(2026, 11, 1, tzinfo=UTC)
FACT = next(one for one in BUILT_IN if one.instance_type == "g5.xlarge")


def test_the_built_in_facts_are_whole() -> None:
    assert not merged(BUILT_IN).left_out
    assert len(merged(BUILT_IN).offers) == len(BUILT_IN)
    for one in BUILT_IN:
        assert one.device_kind in KNOWN_DEVICE_KINDS
        assert one.spot_usd_per_h is not None
        assert one.on_demand_usd_per_h is not None
        assert 0 < one.spot_usd_per_h < one.on_demand_usd_per_h
        assert min(one.tflops, one.vcpus, one.memory_bytes, one.network_gbps, one.hazard_per_h) > 0
        assert (one.device_memory_bytes > 0) == (one.device_kind != "cpu")


def test_the_newest_counts_in_whatever_order_they_come() -> None:
    newer = replace(FACT, spot_usd_per_h=0.4, seen_at=NOW)
    for order in ([FACT], [newer]), ([newer], [FACT]):
        (kept,) = merged(*order).offers
        assert kept.spot_usd_per_h == 0.4


def test_a_price_api_says_no_tflops_and_keeps_those_that_are_known() -> None:
    newer = replace(
        FACT, tflops=0.0, device_memory_bytes=0, vcpus=0, memory_bytes=0, network_gbps=0, seen_at=NOW
    )
    assert merged(BUILT_IN, [newer]).offers[
        [one.instance_type for one in merged(BUILT_IN, [newer]).offers].index("g5.xlarge")
    ] == replace(FACT, seen_at=NOW)


def test_a_price_of_another_day_is_not_taken_over() -> None:
    newer = replace(FACT, spot_usd_per_h=None, seen_at=NOW)
    (kept,) = merged([FACT], [newer]).offers
    assert kept.usd_per_h(Market.SPOT) is None


def test_zones_take_the_place_of_an_older_region() -> None:
    zone = replace(FACT, zone="us-east-1a", seen_at=NOW)
    assert merged([FACT], [zone]).offers == (zone,)
    assert len(merged([replace(FACT, seen_at=NOW + timedelta(hours=1))], [zone]).offers) == 2


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (replace(FACT, on_demand_usd_per_h=None, spot_usd_per_h=None), "no price"),
        (replace(FACT, spot_usd_per_h=math.nan), "not a valid number"),
        (replace(FACT, on_demand_usd_per_h=-1.0), "not a valid number"),
        (replace(FACT, devices=0), "no device"),
    ],
)
def test_what_is_no_offer_is_left_out_with_a_reason(broken: Offer, why: str) -> None:
    found = merged([broken])
    assert found.offers == ()
    assert why in found.left_out[0]
    assert "g5.xlarge in us-east-1" in found.left_out[0]


def test_what_is_no_longer_sold_does_not_keep_its_old_price() -> None:
    gone = replace(FACT, on_demand_usd_per_h=None, spot_usd_per_h=None, seen_at=NOW)
    assert merged([FACT], [gone]).offers == ()


@pytest.mark.parametrize("currency", ["EUR", "CNY", ""])
def test_another_currency_is_refused(currency: str) -> None:
    with pytest.raises(InvalidField, match="only prices in USD"):
        usd(1.0, currency, of="g5.xlarge")


@pytest.mark.parametrize("amount", [-0.1, math.nan, math.inf])
def test_what_is_no_price_is_refused(amount: float) -> None:
    with pytest.raises(InvalidField, match="not a valid price"):
        usd(amount, "USD", of="g5.xlarge")


def test_a_price_in_dollars_is_a_price() -> None:
    assert usd(0.5, "usd", of="g5.xlarge") == 0.5


@given(
    market=st.none() | st.sampled_from(Market),
    most=st.none() | st.floats(0, 60),
    device=st.none() | st.sampled_from(["a10g", "h100", "cpu", "none-such"]),
)
def test_filters_keep_exactly_what_fulfils_them(
    market: Market | None, most: float | None, device: str | None
) -> None:
    kept = set(selected(BUILT_IN, device=device, market=market, max_usd_per_h=most))
    for one in BUILT_IN:
        prices = [one.usd_per_h(each) for each in ([market] if market else Market)]
        cheap = any(price is not None and (most is None or price <= most) for price in prices)
        assert (one in kept) == (cheap and device in (None, one.device_kind))


def test_a_region_or_a_zone_selects() -> None:
    zone = replace(FACT, zone="us-east-1a")
    assert selected([FACT, zone], region="us-east-1") == (FACT, zone)
    assert selected([FACT, zone], region="us-east-1a") == (zone,)
    assert selected([FACT], provider="gcp") == ()
