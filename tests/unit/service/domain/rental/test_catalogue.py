"""Tests of the offers that the catalogue keeps, prefers and rejects."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.devices import KNOWN_DEVICE_KINDS
from headway.contract.values.markets import Market
from service.domain.rental.catalogue import (
    BUILT_IN,
    DEEPVM,
    Catalogue,
    hazard_of,
    merged,
    selected,
    tflops_of,
    usd,
)
from service.domain.rental.offers import Offer
from service.domain.shared.errors import InvalidField
from tests.unit.service.domain.rental.examples import GIB, ON_DEMAND, SPOT, offer_of

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
    assert usd(0.0, "USD", of="g5.xlarge") == 0.0


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


OLD, NEW = NOW - timedelta(days=30), NOW
"""Times of an older and a newer fact."""


def offer(name: str = "x1", *, at: datetime = OLD, **fields: Any) -> Offer:
    return offer_of(name, seen_at=at, **fields)


def kept(*sources: list[Offer]) -> list[tuple[str, str, str, float | None]]:
    return [
        (one.instance_type, one.region, one.zone, one.on_demand_usd_per_h) for one in merged(*sources).offers
    ]


def test_no_sources_are_an_empty_catalogue() -> None:
    assert merged() == merged([], []) == Catalogue(offers=())


def test_offers_are_sorted_by_provider_region_zone_and_type() -> None:
    offers = [
        offer("b", zone="2"),
        offer("a", zone="2"),
        offer("c", zone="1"),
        offer("d", region="a"),
        offer("e", provider="a"),
    ]
    assert [one.instance_type for one in merged(offers).offers] == ["e", "d", "c", "a", "b"]


@pytest.mark.parametrize("field", ["provider", "region", "instance_type"])
def test_another_provider_region_or_type_is_another_offer(field: str) -> None:
    one = offer()
    assert len(merged([one, replace(one, **{field: "other"})]).offers) == 2


@pytest.mark.parametrize(
    ("fact", "known", "taken"),
    [
        ("tflops", 65.0, True),
        ("device_memory_bytes", 7 * GIB, True),
        ("vcpus", 9, True),
        ("memory_bytes", 5 * GIB, True),
        ("network_gbps", 3.0, True),
        ("hazard_per_h", 0.7, False),
    ],
)
def test_a_newer_offer_takes_missing_facts_from_the_older_one_but_no_hazard(
    fact: str, known: float, *, taken: bool
) -> None:
    missing = replace(offer(at=NEW), **{fact: 0})
    (found,) = merged([offer(**{fact: known})], [missing]).offers
    assert getattr(found, fact) == (known if taken else 0)
    own = replace(offer(at=NEW), **{fact: 2})
    (found,) = merged([offer(**{fact: known})], [own]).offers
    assert getattr(found, fact) == 2, "its own fact counts"


def test_facts_come_from_other_places_of_the_type_but_not_from_another_kind() -> None:
    known = offer(region="there", vcpus=9)
    here = offer(at=NEW, vcpus=0)
    assert {one.vcpus for one in merged([known], [here]).offers} == {9}
    another = offer(at=NEW, vcpus=0, device_kind="h100")
    found = merged([known], [another]).offers
    assert sorted(one.vcpus for one in found) == [0, 9]


@pytest.mark.parametrize(
    ("kind", "tflops", "expected"),
    [("h100", 0.0, 989.0), ("h100", 500.0, 500.0), ("none-such", 0.0, 0.0), ("none-such", 5.0, 5.0)],
)
def test_unknown_tflops_are_those_of_the_kind(kind: str, tflops: float, expected: float) -> None:
    (found,) = merged([offer(device_kind=kind, tflops=tflops)]).offers
    assert found.tflops == expected


@pytest.mark.parametrize(
    ("region_at", "zone_at", "region_kept"),
    [(OLD, NEW, False), (NEW, OLD, True), (NEW, NEW, False)],
)
def test_an_offer_of_a_region_counts_only_if_it_is_newer_than_those_of_its_zones(
    region_at: datetime, zone_at: datetime, *, region_kept: bool
) -> None:
    found = merged([offer(at=region_at), offer(at=zone_at, zone="r-a")]).offers
    assert {one.zone for one in found} == ({"", "r-a"} if region_kept else {"r-a"})


def test_the_newest_zone_decides_and_zones_of_other_types_and_regions_do_not() -> None:
    zones = [offer(at=OLD, zone="r-a"), offer(at=NEW, zone="r-b")]
    middle = offer(at=OLD + timedelta(days=1))
    assert {one.zone for one in merged(zones, [middle]).offers} >= {"r-a", "r-b"}
    others = [offer("other", at=NEW, zone="r-a"), offer(at=NEW, region="s", zone="s-a")]
    assert middle in [replace(one, tflops=0.0) for one in merged(others, [middle]).offers]


def test_a_rejected_offer_removes_only_its_own_place() -> None:
    gone = offer(at=NEW, on_demand_usd_per_h=None, spot_usd_per_h=None)
    found = merged([offer(), offer(region="there")], [gone])
    assert [one.region for one in found.offers] == ["there"]
    assert found.left_out == ("p x1 in r: it has no price",)
    again = offer(at=NEW + timedelta(hours=1))
    assert len(merged([offer()], [gone], [again]).offers) == 1


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({"spot_usd_per_h": None}, True),
        ({"on_demand_usd_per_h": None}, True),
        ({"on_demand_usd_per_h": 0.0}, True),
        ({"on_demand_usd_per_h": math.inf}, False),
        ({"on_demand_usd_per_h": None, "spot_usd_per_h": -0.1}, False),
        ({"devices": 1}, True),
        ({"devices": 0}, False),
    ],
)
def test_which_offers_are_valid(fields: dict[str, Any], *, valid: bool) -> None:
    found = merged([offer(**fields)])
    assert (len(found.offers), len(found.left_out)) == ((1, 0) if valid else (0, 1))


facts = st.lists(
    st.builds(
        offer_of,
        name=st.sampled_from(["x1", "x2"]),
        region=st.sampled_from(["r", "s"]),
        zone=st.sampled_from(["", "a"]),
        on_demand_usd_per_h=st.none() | st.floats(0, 9),
        spot_usd_per_h=st.none(),
        seen_at=st.integers(0, 10_000).map(lambda hours: OLD + timedelta(hours=hours)),
    ),
    max_size=12,
    unique_by=lambda one: one.seen_at,
)


@settings(max_examples=30)
@given(facts, st.integers(0, 12))
def test_a_catalogue_does_not_depend_on_the_division_into_sources(offers: list[Offer], at: int) -> None:
    whole = merged(offers)
    assert whole == merged(offers[at:], offers[:at]) == merged(offers[::-1])
    assert len(whole.offers) + len(whole.left_out) <= len(offers)
    places = [(one.provider, one.region, one.zone, one.instance_type) for one in whole.offers]
    assert places == sorted(set(places))


@settings(max_examples=30)
@given(facts)
def test_merging_a_catalogue_again_changes_nothing(offers: list[Offer]) -> None:
    once = merged(offers).offers
    assert merged(once).offers == once


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({}, ["cheap", "dear", "spotless"]),
        ({"device": "h100"}, ["dear"]),
        ({"device": "t4"}, ["cheap", "spotless"]),
        ({"provider": "q"}, ["dear"]),
        ({"region": "s"}, ["spotless"]),
        ({"region": "r-a"}, ["cheap"]),
        ({"market": ON_DEMAND}, ["cheap", "dear", "spotless"]),
        ({"market": SPOT}, ["cheap", "dear"]),
        ({"max_usd_per_h": 0.25}, ["cheap"]),
        ({"max_usd_per_h": 0.249}, []),
        ({"max_usd_per_h": 1.0, "market": ON_DEMAND}, ["cheap", "spotless"]),
        ({"max_usd_per_h": 3.0, "market": SPOT}, ["cheap", "dear"]),
        ({"device": "t4", "region": "s", "market": SPOT}, []),
    ],
)
def test_every_condition_has_to_be_fulfilled(conditions: dict[str, Any], names: list[str]) -> None:
    offers = [
        offer("cheap", zone="r-a"),
        offer("dear", provider="q", device_kind="h100", on_demand_usd_per_h=9.0, spot_usd_per_h=3.0),
        offer("spotless", region="s", spot_usd_per_h=None),
    ]
    assert [one.instance_type for one in selected(offers, **conditions)] == names


@pytest.mark.parametrize(
    ("kind", "tflops", "hazard"), [("t4", 65.0, 0.06), ("v100", 125.0, 0.2), ("none-such", 0.0, 0.0)]
)
def test_facts_of_a_kind(kind: str, tflops: float, hazard: float) -> None:
    assert (tflops_of(kind), hazard_of(kind)) == (tflops, hazard)


def test_a_list_price_has_a_third_of_it_as_its_spot_price() -> None:
    prices = {one.instance_type: (one.on_demand_usd_per_h, one.spot_usd_per_h) for one in BUILT_IN}
    assert prices["p3.2xlarge"] == (3.06, 1.0404)
    assert prices["g4dn.xlarge"] == (0.526, 0.1578), "DeepVM states its own"
    assert len(DEEPVM) == 11
    assert FACT.device_memory_bytes == 24 * GIB
    assert FACT.memory_bytes == 16 * GIB
