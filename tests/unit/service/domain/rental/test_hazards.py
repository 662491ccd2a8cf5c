"""What leases show of how often machines are taken away."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.hazards import (
    HALF_LIFE_H,
    PRIOR_H,
    REMEMBERED_H,
    HazardCounts,
    hazard_counts,
    hazard_per_h,
    hazards_by_kind,
    with_learned,
)
from service.domain.rental.machines import Machine, MachineReason, MachineState

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


def only(*leases: Machine) -> HazardCounts:
    (seen,) = hazard_counts(leases, NOW).values()
    return seen


def test_without_leases_a_hazard_is_the_catalogues() -> None:
    assert hazard_per_h(0.2, HazardCounts()) == pytest.approx(0.2)
    assert with_learned(BUILT_IN, {}) == BUILT_IN
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
    assert only(lease(REMEMBERED_H + 2, REMEMBERED_H + 1)) == HazardCounts(0.0, 0.0)


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
    learned = {one.instance_type: one.hazard_per_h for one in with_learned(BUILT_IN, seen)}
    known = {one.instance_type: one.hazard_per_h for one in BUILT_IN}
    assert learned["g5.xlarge"] > 2 * known["g5.xlarge"]
    assert {name: one for name, one in learned.items() if name != "g5.xlarge"} == {
        name: one for name, one in known.items() if name != "g5.xlarge"
    }


def test_zones_of_a_kind_count_together_for_a_round() -> None:
    found = hazards_by_kind([lease(2, 1), lease(2, 1, zone="us-east-1b")], {"a10g": 0.1}, NOW)
    assert found["a10g"] == pytest.approx((0.1 * PRIOR_H + 2) / (PRIOR_H + 2), rel=0.02)


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
    assert hazard_per_h(0.1, HazardCounts(3.0, 6.0)) == pytest.approx(5.4 / 30)
    assert hazard_per_h(0.0, HazardCounts(3.0, 6.0)) == pytest.approx(3 / 30)
    assert hazard_per_h(-1.0, HazardCounts(3.0, 6.0)) == pytest.approx(3 / 30), "no prior is negative"


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
    one, other = HazardCounts(1.0, 10.0), HazardCounts(0.5, 4.0)
    assert one + other == HazardCounts(1.5, 14.0)
    assert one + HazardCounts() == one
    both = only(lease(2, 1), lease(8, 4, MachineReason.IDLE))
    assert both == only(lease(2, 1)) + only(lease(8, 4, MachineReason.IDLE))


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
    assert found["a10g"] == pytest.approx(1 / (PRIOR_H + 1), rel=0.02), "without a prior it began at 0"


def test_an_offer_in_a_zone_takes_nothing_from_its_region() -> None:
    (offer,) = [one for one in BUILT_IN if one.instance_type == "g5.xlarge"]
    in_zone = replace(offer, zone="us-east-1a")
    of_region = hazard_counts([lease(3, 1, zone="")], NOW)
    of_zone = hazard_counts([lease(3, 1)], NOW)
    assert with_learned([in_zone], of_region) == (in_zone,)
    (learned,) = with_learned([in_zone], of_zone)
    assert learned.hazard_per_h > in_zone.hazard_per_h
    assert replace(learned, hazard_per_h=in_zone.hazard_per_h) == in_zone


spans = st.tuples(st.floats(0, 1000), st.floats(0, 200), st.sampled_from(MachineReason))


@settings(max_examples=50)
@given(st.lists(spans, max_size=6), st.floats(0, 5))
def test_a_loss_raises_a_hazard_and_an_hour_without_one_lowers_it(
    leases: list[tuple[float, float, MachineReason]], prior: float
) -> None:
    rows = [lease(ended + hours, ended, reason) for ended, hours, reason in leases]
    seen = sum(hazard_counts(rows, NOW).values(), HazardCounts())
    now = hazard_per_h(prior, seen)
    assert hazard_per_h(prior, seen + HazardCounts(losses=1.0)) > now
    assert hazard_per_h(prior, seen + HazardCounts(machine_h=1.0)) <= now
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
