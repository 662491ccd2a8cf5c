"""Tests of the share of losses that take all machines of a zone."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import TOGETHER
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.spot.together import PRIOR_LOSSES, WINDOW_S, ZoneShares, zone_shares
from tests.unit.service.builders import NOW, machine_of

LOST, IDLE = MachineReason.SPOT_RECLAIMED, MachineReason.IDLE


def lease(
    ended_s: float | None,
    reason: MachineReason = LOST,
    *,
    zone: str = "a",
    began_s: float = 10_000,
    **fields: object,
) -> Machine:
    """A lease that began and ended so many seconds ago."""
    return machine_of(
        zone=zone,
        state=MachineState.RUNNING if ended_s is None else MachineState.GONE,
        reason=reason,
        billed_from=NOW - timedelta(seconds=began_s),
        billed_to=None if ended_s is None else NOW - timedelta(seconds=ended_s),
        **fields,
    )


def share(*leases: Machine, zone: str = "a") -> float:
    return zone_shares(leases, NOW).share("cloud", zone)


def posterior(together: float, lost: float) -> float:
    return (TOGETHER * PRIOR_LOSSES + together) / (PRIOR_LOSSES + lost)


def test_without_losses_the_share_is_that_of_the_traces() -> None:
    assert ZoneShares().share("cloud", "a") == TOGETHER
    assert share() == TOGETHER
    assert share(lease(None), lease(5, IDLE)) == TOGETHER
    assert share(lease(5), lease(5), zone="b") == TOGETHER


@pytest.mark.parametrize(
    ("leases", "together", "lost"),
    [
        ([lease(0), lease(0)], 2, 2),
        ([lease(0), lease(0), lease(None)], 0, 2),
        ([lease(0), lease(None)], 0, 1),
        ([lease(0)], 0, 0),
        ([lease(WINDOW_S), lease(0), lease(0)], 3, 3),
        ([lease(WINDOW_S + 1), lease(0), lease(0)], 2, 3),
        ([lease(0), lease(0), lease(0, IDLE)], 0, 2),
        ([lease(0), lease(0), lease(50, IDLE)], 2, 2),
        ([lease(0), lease(0), lease(None, market=Market.ON_DEMAND)], 2, 2),
        ([lease(0), lease(0), lease(None, zone="b")], 2, 2),
        ([lease(0), lease(0, instance_type="large")], 2, 2),
    ],
    ids=[
        "all of two",
        "two of three",
        "one of two",
        "one alone shows nothing",
        "within the window",
        "one before, then both others",
        "one was returned at the same time",
        "one was returned before",
        "on demand does not count",
        "another zone",
        "another type of the zone",
    ],
)
def test_an_event_counts_by_the_machines_that_it_took(
    leases: list[Machine], together: float, lost: float
) -> None:
    assert share(*leases) == pytest.approx(posterior(together, lost), rel=1e-3)


def test_a_place_without_a_zone_is_its_region() -> None:
    found = zone_shares([lease(0, zone=""), lease(0, zone="")], NOW)
    assert found.share("cloud", "here") == pytest.approx(posterior(2, 2))


def test_an_event_counts_half_after_three_days() -> None:
    old = 72 * 3600
    found = share(lease(old, began_s=old + 9), lease(old, began_s=old + 9))
    assert found == pytest.approx(posterior(1, 1))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 9000), st.sampled_from([LOST, IDLE, MachineReason.VANISHED])), max_size=10
    ),
    st.randoms(use_true_random=False),
)
def test_a_share_is_a_share_in_any_order(ends: list[tuple[float, MachineReason]], dice: Random) -> None:
    leases = [lease(ended, reason) for ended, reason in ends]
    found = share(*leases)
    assert 0 < found < 1
    assert share(*dice.sample(leases, len(leases))) == pytest.approx(found)
