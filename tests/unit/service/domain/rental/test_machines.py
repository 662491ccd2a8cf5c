"""Tests of what a machine costs: the paid period, its least length, and the price of a slot."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.rental.machines import ENDED, Found, MachineState, billed_s, cost_usd, paid_until
from tests.unit.service.builders import NOW, machine_of


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("billed_from", "billed_to", "now", "until"),
    [
        (None, None, 100, None),
        (None, 50, 100, None),
        (0, None, 100, 100),
        (0, None, 10, 10),
        (200, None, 100, 200),
        (0, 70, 100, 70),
        (0, 70, 65, 70),
        (0, 59, 100, 60),
        (0, 60, 100, 60),
        (0, 61, 100, 61),
        (0, 0, 100, 60),
    ],
)
def test_a_machine_is_paid_for_until_its_end_or_now(
    billed_from: int | None, billed_to: int | None, now: int, until: int | None
) -> None:
    """The least that is paid for is a minute. It is added only once the machine has ended."""
    machine = machine_of(
        billed_from=None if billed_from is None else at(billed_from),
        billed_to=None if billed_to is None else at(billed_to),
    )
    assert paid_until(machine, at(now)) == (None if until is None else at(until))
    length_s = 0 if until is None or billed_from is None else until - billed_from
    assert billed_s(machine, at(now)) == length_s
    assert cost_usd(machine, at(now)) == pytest.approx(length_s * 0.001), "$3.60 an hour"


@pytest.mark.parametrize(
    ("minimum_s", "paid_s"),
    [(0.0, 20), (60.0, 60), (3600.0, 3600), (-5.0, 20), (math.nan, 20), (math.inf, 20)],
)
def test_a_least_period_that_is_no_number_of_seconds_counts_as_none(minimum_s: float, paid_s: float) -> None:
    machine = machine_of(billed_from=NOW, billed_to=at(20), min_billed_s=minimum_s)
    assert billed_s(machine, at(30)) == paid_s


@pytest.mark.parametrize(
    ("slots", "usd_per_slot_h"),
    [(1, 3.6), (2, 1.8), (8, 0.45), (0, 3.6)],
)
def test_slots_share_the_price_of_their_machine(slots: int, usd_per_slot_h: float) -> None:
    assert machine_of(slots=slots).usd_per_slot_h == pytest.approx(usd_per_slot_h)


seconds = st.integers(0, 100_000)


@settings(max_examples=60)
@given(ended_s=st.none() | seconds, minimum_s=st.floats(0, 7200), now_s=seconds, later_s=seconds)
def test_a_bill_never_shrinks_and_is_final_after_the_end(
    ended_s: int | None, minimum_s: float, now_s: int, later_s: int
) -> None:
    machine = machine_of(
        billed_from=NOW, billed_to=None if ended_s is None else at(ended_s), min_billed_s=minimum_s
    )
    first, second = (cost_usd(machine, at(one)) for one in sorted((now_s, now_s + later_s)))
    assert 0 <= first <= second
    if ended_s is not None:
        assert first == second
        assert billed_s(machine, NOW) >= max(ended_s, minimum_s) - 1e-5


@settings(max_examples=40)
@given(st.floats(0, 1000), st.integers(1, 16), seconds)
def test_the_slots_of_a_machine_cost_what_the_machine_costs(usd_per_h: float, slots: int, ran_s: int) -> None:
    machine = machine_of(usd_per_h=usd_per_h, slots=slots, billed_from=NOW)
    of_slots = machine.usd_per_slot_h * slots * ran_s / 3600
    assert cost_usd(machine, at(ran_s)) == pytest.approx(of_slots)


def test_a_machine_has_ended_once_it_is_gone_or_never_existed() -> None:
    assert {MachineState.GONE, MachineState.FAILED} == ENDED


@pytest.mark.parametrize(
    ("term_s", "left_s", "needs"),
    [
        (3600, 601, False),
        (3600, 600, True),
        (180, 91, False),
        (180, 90, True),
        (None, 0, False),
    ],
)
def test_machine_needs_a_successor_ten_minutes_or_half_its_term_before_its_end(
    term_s: int | None, left_s: int, needs: bool
) -> None:
    ends_at = None if term_s is None else at(term_s)
    found = Found(external_id="7", machine_id="m", ended=False, billed_from=NOW, ends_at=ends_at)
    assert found.needs_successor(at((term_s or 0) - left_s)) is needs
