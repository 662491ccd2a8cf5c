"""Hazards learned from leases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.spot.hazards import (
    PART_H,
    PARTS,
    PRIOR_H,
    PRIOR_PART_H,
    HazardCounts,
    Place,
    coming_hazard_per_h,
    hazard_counts,
    hazard_per_h,
    hazards_by_kind,
    with_learned,
)
from service.domain.rental.spot.observations import HALF_LIFE_H, REMEMBERED_H
from service.domain.rental.spot.together import ZoneShares

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def lease(
    began_h: float,
    ended_h: float | None,
    reason: MachineReason = MachineReason.SPOT_RECLAIMED,
    *,
    market: Market = Market.SPOT,
    name: str = "g5.xlarge",
    zone: str = "us-east-1a",
    kind: str = "a10g",
    billed: bool = True,
) -> Machine:
    """A lease that began and ended so many hours ago; `None`: it goes on."""
    began = NOW - timedelta(hours=began_h)
    ended = None if ended_h is None else NOW - timedelta(hours=ended_h)
    return Machine(
        id="m1",
        provider="ec2",
        region="us-east-1",
        zone=zone,
        instance_type=name,
        device_kind=kind,
        slots=1,
        market=market,
        usd_per_h=0.3,
        state=MachineState.RUNNING if ended is None else MachineState.GONE,
        reason=reason,
        message="",
        requested_at=began,
        state_since=began,
        billed_from=began if billed else None,
        billed_to=ended if billed else None,
    )


def counts(losses: float = 0.0, machine_h: float = 0.0) -> HazardCounts:
    """Counts that are spread evenly over the day."""
    return HazardCounts(np.full(PARTS, losses / PARTS), np.full(PARTS, machine_h / PARTS))


def learned(offers: Sequence[Offer], seen: Mapping[Place, HazardCounts]) -> tuple[Offer, ...]:
    return with_learned(offers, seen, NOW, ZoneShares())


def only(*leases: Machine) -> HazardCounts:
    (seen,) = hazard_counts(leases, NOW).values()
    return seen


def test_without_leases_a_hazard_is_the_catalogues() -> None:
    assert hazard_per_h(0.2, HazardCounts()) == pytest.approx(0.2)
    assert learned(BUILT_IN, {}) == BUILT_IN
    assert hazards_by_kind([], {"t4": 0.06}, NOW) == {"t4": pytest.approx(0.06)}


def test_a_lease_counts_its_hours_and_its_loss() -> None:
    seen = only(lease(2, 1))
    assert seen.losses == pytest.approx(1, rel=0.01)
    assert seen.machine_h == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        (MachineReason.SPOT_RECLAIMED, True),
        (MachineReason.ENDED_BY_PROVIDER, True),
        (MachineReason.VANISHED, True),
        (MachineReason.IDLE, False),
        (MachineReason.GIVEN_BACK, False),
    ],
)
def test_only_what_its_provider_ended_was_lost(reason: MachineReason, lost: bool) -> None:
    assert (only(lease(2, 1, reason)).losses > 0) == lost


def test_a_lease_that_goes_on_shows_hours_without_a_loss() -> None:
    seen = only(lease(10, None))
    assert seen.losses == 0
    assert seen.machine_h == pytest.approx(10, rel=0.06)


def test_what_was_seen_counts_half_after_its_half_life_and_then_nothing() -> None:
    recent, old = only(lease(1, 0)), only(lease(1 + HALF_LIFE_H, HALF_LIFE_H))
    assert old.losses == pytest.approx(recent.losses / 2)
    assert old.machine_h == pytest.approx(recent.machine_h / 2)
    gone = only(lease(REMEMBERED_H + 2, REMEMBERED_H + 1))
    assert (gone.losses, gone.machine_h) == (0.0, 0.0)


def test_places_are_told_apart_and_markets_on_demand_show_nothing() -> None:
    seen = hazard_counts(
        [
            lease(5, 1),
            lease(5, 1, zone="us-east-1b"),
            lease(5, 1, zone=""),
            lease(5, 1, market=Market.ON_DEMAND),
            lease(5, 1, billed=False, zone="us-east-1c"),
        ],
        NOW,
    )
    assert set(seen) == {("ec2", "g5.xlarge", one) for one in ("us-east-1a", "us-east-1b", "us-east-1")}


def test_an_offer_takes_the_hazard_of_its_place() -> None:
    seen = hazard_counts([lease(3, 1, zone="")] * 10, NOW)
    found = {one.instance_type: one.hazard_per_h for one in learned(BUILT_IN, seen)}
    known = {one.instance_type: one.hazard_per_h for one in BUILT_IN}
    assert found["g5.xlarge"] > 2 * known["g5.xlarge"]
    assert {name: one for name, one in found.items() if name != "g5.xlarge"} == {
        name: one for name, one in known.items() if name != "g5.xlarge"
    }


def test_zones_of_a_kind_count_together_for_a_round() -> None:
    one, other = lease(2, 1), lease(2, 1, zone="us-east-1b")
    together = sum(hazard_counts([one, other], NOW).values(), HazardCounts())
    assert together.losses == pytest.approx(2, rel=0.02)
    found = hazards_by_kind([one, other], {"a10g": 0.1}, NOW)
    assert found["a10g"] == pytest.approx(coming_hazard_per_h(0.1, together, NOW))


@settings(max_examples=50)
@given(
    prior=st.floats(0, 5),
    leases=st.lists(
        st.tuples(st.floats(0, 2000), st.floats(0, 200), st.sampled_from(MachineReason)), max_size=8
    ),
)
def test_a_hazard_lies_between_the_catalogues_and_what_was_seen(
    prior: float, leases: list[tuple[float, float, MachineReason]]
) -> None:
    rows = [lease(ended + hours, ended, reason) for ended, hours, reason in leases]
    seen = sum(hazard_counts(rows, NOW).values(), HazardCounts())
    found = hazard_per_h(prior, seen)
    assert found >= 0
    if seen.machine_h > 0:
        low, high = sorted((prior, seen.losses / seen.machine_h))
        assert low - 1e-9 <= found <= high + 1e-9


def test_the_posterior_mean_by_hand() -> None:
    """A prior of 0.1 an hour worth 24 machine-hours, and 3 losses in 6: (2.4 + 3) / 30."""
    assert hazard_per_h(0.1, counts(3.0, 6.0)) == pytest.approx(5.4 / 30)
    assert hazard_per_h(0.0, counts(3.0, 6.0)) == pytest.approx(3 / 30)
    assert hazard_per_h(-1.0, counts(3.0, 6.0)) == pytest.approx(3 / 30), "no prior is negative"


def test_the_weight_of_a_long_lease_is_its_integral() -> None:
    """The integral of 0.5 ** (age / 72) from 0 to 72 hours is 72 / ln 2 * (1 - 0.5)."""
    found = only(lease(HALF_LIFE_H, 0))
    assert found.machine_h == pytest.approx(72 / math.log(2) / 2)
    assert found.losses == 1.0
    twice = only(lease(2 * HALF_LIFE_H, 0))
    assert twice.machine_h == pytest.approx(72 / math.log(2) * 0.75)


@pytest.mark.parametrize(
    ("began_h", "ended_h", "machine_h", "losses"),
    [
        (0, 0, 0.0, 1.0),
        (-5, None, 0.0, 0.0),
        (-1, -2, 0.0, 1.0),
        (1, -3, 0.995, 1.0),
    ],
    ids=["no time", "begins later", "lies in the future", "ends later"],
)
def test_times_after_now_count_as_now(
    began_h: float, ended_h: float | None, machine_h: float, losses: float
) -> None:
    found = only(lease(began_h, ended_h))
    assert (found.machine_h, found.losses) == (pytest.approx(machine_h, abs=0.001), losses)


@pytest.mark.parametrize(
    ("ended_h", "remembered"),
    [(REMEMBERED_H - 1, True), (REMEMBERED_H, True), (REMEMBERED_H + 0.01, False)],
)
def test_observations_are_ignored_after_ten_half_lives(ended_h: float, *, remembered: bool) -> None:
    found = only(lease(ended_h + 1, ended_h))
    assert (found.losses > 0) is remembered
    assert (found.machine_h > 0) is remembered


def test_counts_add_up_by_place() -> None:
    added = counts(1.0, 10.0) + counts(0.5, 4.0) + HazardCounts()
    assert (added.losses, added.machine_h) == (pytest.approx(1.5), pytest.approx(14.0))
    both = only(lease(2, 1), lease(8, 4, MachineReason.IDLE))
    apart = only(lease(2, 1)) + only(lease(8, 4, MachineReason.IDLE))
    assert both.machine_h_by_part.tolist() == apart.machine_h_by_part.tolist()
    assert both.losses_by_part.tolist() == apart.losses_by_part.tolist()


def test_no_leases_have_no_places() -> None:
    assert hazard_counts([], NOW) == {}


def test_a_kind_is_listed_if_it_was_rented_or_has_a_prior() -> None:
    found = hazards_by_kind(
        [
            lease(2, 1, kind="a10g"),
            lease(2, 1, kind="h100", market=Market.ON_DEMAND),
            lease(2, 1, kind="l4", billed=False),
        ],
        {"t4": 0.06},
        NOW,
    )
    assert list(found) == ["a10g", "t4"]
    assert found["t4"] == pytest.approx(0.06)
    assert 0 < found["a10g"] < 1 / PRIOR_H, "without a prior it began at 0"


def test_an_offer_in_a_zone_takes_nothing_from_its_region() -> None:
    (offer,) = [one for one in BUILT_IN if one.instance_type == "g5.xlarge"]
    in_zone = replace(offer, zone="us-east-1a")
    of_region = hazard_counts([lease(3, 1, zone="")], NOW)
    of_zone = hazard_counts([lease(3, 1)], NOW)
    assert learned([in_zone], of_region) == (in_zone,)
    (found,) = learned([in_zone], of_zone)
    assert found.hazard_per_h > in_zone.hazard_per_h
    assert replace(found, hazard_per_h=in_zone.hazard_per_h) == in_zone


spans = st.tuples(st.floats(0, 1000), st.floats(0, 200), st.sampled_from(MachineReason))


@settings(max_examples=50)
@given(st.lists(spans, max_size=6), st.floats(0, 5))
def test_a_loss_raises_a_hazard_and_an_hour_without_one_lowers_it(
    leases: list[tuple[float, float, MachineReason]], prior: float
) -> None:
    rows = [lease(ended + hours, ended, reason) for ended, hours, reason in leases]
    seen = sum(hazard_counts(rows, NOW).values(), HazardCounts())
    now = hazard_per_h(prior, seen)
    assert hazard_per_h(prior, seen + counts(losses=1.0)) > now
    assert hazard_per_h(prior, seen + counts(machine_h=1.0)) <= now
    assert hazard_per_h(prior + 1, seen) > now


@settings(max_examples=40)
@given(st.lists(spans, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_leases_does_not_matter(
    leases: list[tuple[float, float, MachineReason]], dice: Random
) -> None:
    rows = [lease(ended + hours, ended, reason) for ended, hours, reason in leases]
    mixed = dice.sample(rows, len(rows))
    for place, counts in hazard_counts(rows, NOW).items():
        other = hazard_counts(mixed, NOW)[place]
        assert (counts.losses, counts.machine_h) == pytest.approx((other.losses, other.machine_h))
    assert hazards_by_kind(rows, {}, NOW) == pytest.approx(hazards_by_kind(mixed, {}, NOW))


@settings(max_examples=40)
@given(st.floats(0, 300), st.floats(0, 300), st.floats(0, 100))
def test_two_leases_in_a_row_count_as_one_of_both_lengths(
    ended_h: float, first_h: float, second_h: float
) -> None:
    middle = ended_h + second_h
    parts = only(lease(middle + first_h, middle, MachineReason.IDLE), lease(middle, ended_h))
    whole = only(lease(middle + first_h, ended_h))
    assert parts.machine_h == pytest.approx(whole.machine_h, abs=1e-6)
    assert parts.losses == pytest.approx(whole.losses)


def at_hour(hour: float) -> datetime:
    return NOW + timedelta(hours=hour)


@pytest.mark.parametrize(
    ("began_h", "ended_h", "hours"),
    [
        (4, 0, [0, 0, 0, 0, 0, 4]),
        (8, 0, [0, 0, 0, 0, 4, 4]),
        (3, 1, [0, 0, 0, 0, 0, 2]),
        (9, 3, [0, 0, 0, 1, 4, 1]),
        (24, 0, [4, 4, 4, 4, 4, 4]),
    ],
)
def test_the_hours_of_a_lease_are_counted_in_their_parts_of_the_day(
    began_h: float, ended_h: float, hours: list[float]
) -> None:
    """It is midnight UTC now. Within a day, an hour weighs 0.8 to 1."""
    found = only(lease(began_h, ended_h, MachineReason.IDLE))
    assert found.losses == 0
    for part, expected in enumerate(hours):
        assert 0.79 * expected <= found.machine_h_by_part[part] <= expected


@pytest.mark.parametrize(("ended_h", "part"), [(0.5, 5), (3.9, 5), (4.1, 4), (23.9, 0), (24.1, 5), (48.5, 5)])
def test_a_loss_is_counted_in_the_part_of_the_day_of_its_end(ended_h: float, part: int) -> None:
    found = only(lease(ended_h + 10, ended_h))
    assert np.flatnonzero(found.losses_by_part).tolist() == [part]


def test_a_part_of_the_day_has_the_rate_of_the_place_as_its_prior() -> None:
    """The place has 0.1 * 24 + 6 losses in 24 + 24 hours. All losses were from 8 to 12, in 4 hours of leases."""
    losses = np.array([0.0, 0, 6, 0, 0, 0])
    seen = HazardCounts(losses, np.full(PARTS, 4.0))
    place = (0.1 * PRIOR_H + 6) / (PRIOR_H + 24)
    assert hazard_per_h(0.1, seen) == pytest.approx(place)
    calm = place * PRIOR_PART_H / (PRIOR_PART_H + 4)
    rough = (place * PRIOR_PART_H + 6) / (PRIOR_PART_H + 4)
    assert coming_hazard_per_h(0.1, seen, at_hour(0)) == pytest.approx(calm)
    assert coming_hazard_per_h(0.1, seen, at_hour(8)) == pytest.approx(rough)
    assert coming_hazard_per_h(0.1, seen, at_hour(7)) == pytest.approx((calm + 3 * rough) / 4)
    assert coming_hazard_per_h(0.1, seen, at_hour(11)) == pytest.approx((rough + 3 * calm) / 4)
    assert coming_hazard_per_h(0.1, seen, at_hour(32)) == pytest.approx(rough), (
        "the next day is like this one"
    )


def test_hours_are_those_of_utc() -> None:
    seen = HazardCounts(np.array([0.0, 0, 6, 0, 0, 0]), np.full(PARTS, 4.0))
    there = timezone(timedelta(hours=-5))
    assert coming_hazard_per_h(0.1, seen, datetime(2026, 11, 21, 3, tzinfo=there)) == pytest.approx(
        coming_hazard_per_h(0.1, seen, at_hour(8))
    )


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 20), min_size=PARTS, max_size=PARTS),
    st.lists(st.floats(0, 200), min_size=PARTS, max_size=PARTS),
    st.floats(0, 5),
    st.floats(0, 24),
)
def test_the_rate_of_the_coming_hours_lies_between_those_of_the_parts(
    losses: list[float], hours: list[float], prior: float, hour: float
) -> None:
    seen = HazardCounts(np.array(losses), np.array(hours))
    rates = [coming_hazard_per_h(prior, seen, at_hour(part * PART_H)) for part in range(PARTS)]
    assert min(rates) - 1e-9 <= coming_hazard_per_h(prior, seen, at_hour(hour)) <= max(rates) + 1e-9


@settings(max_examples=60)
@given(st.floats(0, 2000), st.floats(0, 900), st.floats(0, 24))
def test_the_parts_of_a_lease_add_up_to_its_weight(began_h: float, length_h: float, hour: float) -> None:
    now = at_hour(hour)
    one = lease(began_h + length_h, began_h, MachineReason.IDLE)
    (seen,) = hazard_counts([one], now).values()
    ages = [(now - moment).total_seconds() / 3600 for moment in (one.billed_from, one.billed_to) if moment]
    began, ended = (0.0 if age > REMEMBERED_H else 0.5 ** (age / HALF_LIFE_H) for age in ages)
    assert seen.machine_h == pytest.approx(HALF_LIFE_H / math.log(2) * max(ended - began, 0.0), abs=1e-6)
    assert (seen.machine_h_by_part >= 0).all()


def test_an_offer_has_the_hazard_of_the_coming_hours_and_the_share_of_its_zone() -> None:
    (offer,) = [one for one in BUILT_IN if one.instance_type == "g5.xlarge"]
    in_zone = replace(offer, zone="us-east-1a")
    seen = hazard_counts([lease(ended + 2, ended) for ended in (2.0, 26.0, 50.0)], NOW)
    shares = ZoneShares({("aws", "us-east-1a"): 0.9, (offer.provider, "us-east-1a"): 0.2})
    (counted,) = seen.values()
    place = {(offer.provider, "g5.xlarge", "us-east-1a"): counted}
    (before,) = with_learned([in_zone], place, at_hour(18), shares)
    (later,) = with_learned([in_zone], place, at_hour(6), shares)
    assert before.hazard_per_h > later.hazard_per_h > 0
    assert (before.together, later.together) == (0.2, 0.2)
