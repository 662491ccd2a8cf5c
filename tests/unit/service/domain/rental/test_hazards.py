"""What leases show of how often machines are taken away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
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
