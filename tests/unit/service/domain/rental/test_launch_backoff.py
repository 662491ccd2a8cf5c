"""Tests of the backoff of places where launches fail."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.fleet import LaunchBackoff, RentalPlace, cooling, not_launched, place_of
from service.domain.rental.machines import Machine, MachineReason, MachineState
from tests.unit.service.builders import NOW, machine_of
from tests.unit.service.domain.rental.test_fleet import at, running


def test_what_cannot_be_had_cools_down_longer_each_time() -> None:
    place = place_of(machine_of())

    def failed(number: int, seconds: float, reason: MachineReason = MachineReason.NO_CAPACITY) -> Machine:
        return not_launched(machine_of(f"m{number}"), reason, "none left", at(seconds))

    assert cooling([], NOW) == {}
    assert cooling([failed(1, 0)], NOW)[place].until == at(30)
    assert cooling([failed(1, 0)], at(30)) == {}
    assert cooling([failed(1, 0), failed(2, 40)], at(41))[place].until == at(100)
    many = [failed(number, 0) for number in range(40)]
    assert cooling(many, NOW)[place].until == at(3600)
    between = replace(running("m9"), state_since=at(20))
    assert cooling([failed(1, 0), between, failed(2, 40)], at(41))[place].until == at(70)
    assert cooling([failed(1, 0, MachineReason.REFUSED)], NOW)[place].until == at(3600)
    assert place_of(replace(machine_of(), zone="b")) not in cooling([failed(1, 0)], NOW)


def failure(
    number: int, seconds: float, reason: MachineReason = MachineReason.NO_CAPACITY, **fields: Any
) -> Machine:
    return not_launched(machine_of(f"m{number:03}", **fields), reason, f"no {number}", at(seconds))


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
    [(1, 30), (2, 60), (3, 120), (4, 240), (7, 1920), (8, 3600), (9, 3600), (30, 3600)],
)
def test_the_backoff_doubles_up_to_an_hour(failures: int, wait_s: float) -> None:
    machines = [failure(number, number) for number in range(failures)]
    (found,) = cooling(machines, at(failures)).values()
    assert found == LaunchBackoff(at(failures - 1 + wait_s), f"no {failures - 1}")


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


def test_an_earlier_refusal_counts_as_one_failure_in_a_row() -> None:
    machines = [failure(1, 0, MachineReason.REFUSED), failure(2, 10)]
    (found,) = cooling(machines, at(11)).values()
    assert found.until == at(70)


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
