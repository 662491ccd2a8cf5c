"""Tests of the backoff of places where launches fail."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.fleet import LaunchBackoff, RentalPlace, backoff_s, cooling, not_launched, place_of
from service.domain.rental.machines import Machine, MachineReason, MachineState
from tests.unit.service.builders import NOW, machine_of
from tests.unit.service.domain.rental.test_fleet import at, running


def test_what_cannot_be_had_cools_down_longer_each_time() -> None:
    place = place_of(machine_of())
    refused = failure(1, 0, MachineReason.REFUSED)
    assert cooling([], NOW) == {}
    assert cooling([failure(1, 0)], NOW)[place].until == at(30)
    assert cooling([failure(1, 0)], at(30)) == {}
    assert cooling([failure(1, 0), failure(2, 40)], at(41))[place].until == at(100)
    between = replace(running("m9"), state_since=at(20))
    assert cooling([failure(1, 0), between, failure(2, 40)], at(41))[place].until == at(70)
    assert cooling([refused], NOW)[place].until == at(3600)
    assert place_of(replace(machine_of(), zone="b")) not in cooling([failure(1, 0)], NOW)


def test_machines_that_were_requested_together_fail_once() -> None:
    together = [failure(number, number / 10) for number in range(40)]
    (found,) = cooling(together, at(4)).values()
    assert found.until == at(3.9 + 30)
    (found,) = cooling([*together, failure(40, 40), failure(41, 41)], at(42)).values()
    assert found.until == at(41 + 60), "the second attempt"


def failure(
    number: int, seconds: float, reason: MachineReason = MachineReason.NO_CAPACITY, **fields: Any
) -> Machine:
    machine = machine_of(f"m{number:03}", **{"requested_at": at(seconds), **fields})
    return not_launched(machine, reason, f"no {number}", at(seconds))


def test_a_refusal_ends_the_lease_and_keeps_the_answer_of_the_provider() -> None:
    refused = not_launched(machine_of(), MachineReason.REFUSED, "quota is 0", at(7))
    assert (refused.state, refused.reason, refused.message, refused.state_since) == (
        MachineState.FAILED,
        MachineReason.REFUSED,
        "quota is 0",
        at(7),
    )


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(0, 30), (1, 30), (2, 60), (3, 120), (4, 240), (7, 1920), (8, 3600), (9, 3600), (1000, 3600)],
)
def test_the_backoff_doubles_up_to_an_hour(failures: int, wait_s: float) -> None:
    assert backoff_s(failures) == wait_s


def test_each_attempt_after_the_backoff_doubles_it() -> None:
    machines, seconds = [], 0.0
    for number in range(12):
        machines.append(failure(number, seconds))
        (found,) = cooling(machines, at(seconds)).values()
        assert found == LaunchBackoff(at(seconds + backoff_s(number + 1)), f"no {number}")
        seconds += backoff_s(number + 1)


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        (MachineReason.NO_CAPACITY, True),
        (MachineReason.NEVER_JOINED, True),
        (MachineReason.GIVEN_UP, True),
        (MachineReason.REFUSED, True),
        (MachineReason.IDLE, False),
        (MachineReason.SPOT_RECLAIMED, False),
        (MachineReason.AGENT_LOST, False),
        (MachineReason.VANISHED, False),
    ],
)
def test_which_ends_are_failures_of_a_launch(reason: MachineReason, *, fails: bool) -> None:
    assert bool(cooling([failure(1, 0, reason)], NOW)) is fails


@pytest.mark.parametrize(
    ("state", "resets"),
    [
        (MachineState.WANTED, False),
        (MachineState.LAUNCHING, False),
        (MachineState.RUNNING, True),
        (MachineState.ENDING, True),
        (MachineState.GONE, True),
    ],
)
def test_a_machine_that_ran_since_the_failure_ends_the_backoff(state: MachineState, *, resets: bool) -> None:
    other = machine_of("m9", state=state, state_since=at(5))
    assert bool(cooling([failure(1, 0), other], at(6))) is not resets
    assert cooling([other, failure(1, 6)], at(7)), "not a machine that ran before"


def test_another_failure_does_not_shorten_the_backoff_of_a_refusal() -> None:
    machines = [failure(1, 0, MachineReason.REFUSED), failure(2, 10)]
    (found,) = cooling(machines, at(11)).values()
    assert found.until == at(3600)
    (found,) = cooling([*machines, failure(3, 3600)], at(3601)).values()
    assert found.until == at(3660), "the refusal counts as one failure in a row"


@pytest.mark.parametrize(
    "fields",
    [
        {"provider": "q"},
        {"region": "s"},
        {"zone": "b"},
        {"instance_type": "large"},
        {"market": Market.ON_DEMAND},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_each_place_has_its_own_backoff(fields: dict[str, Any]) -> None:
    here, there = failure(1, 0), failure(2, 5, **fields)
    found = cooling([here, there], at(6))
    assert {place: one.until for place, one in found.items()} == {
        place_of(here): at(30),
        place_of(there): at(35),
    }


def test_the_place_of_a_machine_is_its_offer_and_market() -> None:
    machine = machine_of(zone="a", market=Market.SPOT)
    assert place_of(machine) == RentalPlace("cloud", "here", "a", "small", Market.SPOT)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 10_000), max_size=12), st.integers(0, 20_000), st.randoms(use_true_random=False)
)
def test_a_backoff_ends_within_an_hour_of_the_last_failure_in_any_order(
    times: list[int], now_s: int, dice: Random
) -> None:
    machines = [failure(number, seconds) for number, seconds in enumerate(times)]
    found = cooling(dice.sample(machines, len(machines)), at(now_s))
    assert found == cooling(machines, at(now_s))
    for one in found.values():
        assert at(now_s) < one.until <= at(max(times) + 3600)
    if times and now_s < max(times) + 30:
        assert found, "at least half a minute after the last failure"
