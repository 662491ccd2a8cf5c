"""Tests of equal shares: the published sum, weights, ties, and jobs that wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.policies.fair import Fair
from service.domain.policies.registry import policy
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    random_round,
)


def shares(round_, choice: np.ndarray) -> np.ndarray:
    """(J,) slots for each unit of weight; a quarter of a slot for none."""
    return np.append(round_.configurations.slots, 0.25)[choice] / round_.weight


@pytest.mark.parametrize("p", [-1.0, -4.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_weighted_power_sum_of_shares_is_at_its_lowest(seed: int, p: float) -> None:
    round_ = random_round(seed, jobs=4, sizes=3)
    possible = np.concatenate([round_.goodput > 0, np.ones((4, 1), dtype=bool)], axis=1)
    choices = every_choice(4, 3)
    choices = choices[is_feasible(round_.rows, choices) & possible[np.arange(4), choices].all(axis=1)]
    best = min((round_.weight * shares(round_, choice) ** p).sum() for choice in choices)
    chosen = policy("fair", {"p": p}).choose(round_, brute_force).chosen
    assert (round_.weight * shares(round_, chosen) ** p).sum() == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("goodputs", [(1.0, 100.0), (100.0, 1.0)])
def test_shares_do_not_depend_on_how_well_a_job_uses_them(goodputs: tuple[float, float]) -> None:
    table = [[goodput, 1.5 * goodput, 1.6 * goodput] for goodput in goodputs]
    assert Fair().choose(a_round(table, [1, 2, 3], capacity=4), brute_force).chosen.tolist() == [1, 1]


def test_twice_the_weight_is_twice_the_share() -> None:
    round_ = a_round([[1.0, 2.0, 3.0, 4.0]] * 2, [1, 2, 3, 4], capacity=6, weight=[1.0, 2.0])
    assert Fair().choose(round_, brute_force).chosen.tolist() == [1, 3]


def test_of_equal_shares_the_faster_kind_is_taken() -> None:
    round_ = a_round([[1.0, 2.0], [1.0, 5.0]], [1, 1], kind=[0, 1], capacity=1)
    assert sorted(Fair().choose(round_, brute_force).chosen.tolist()) == [0, 1]
    alone = a_round([[1.0, 2.0]], [1, 1], kind=[0, 1], capacity=1)
    assert Fair().choose(alone, brute_force).chosen.tolist() == [1]


@pytest.mark.parametrize(
    ("jobs", "capacity", "expected"),
    [
        (1, 0, [0]),
        (1, 4, [4]),
        (2, 4, [2, 2]),
        (2, 3, [1, 2]),
        (3, 2, [0, 1, 1]),
        (4, 16, [4, 4, 4, 4]),
        (3, 7, [2, 2, 3]),
    ],
)
def test_slots_are_divided_as_evenly_as_they_can_be(jobs: int, capacity: int, expected: list[int]) -> None:
    round_ = a_round([[1.0, 2.0, 3.0, 4.0]] * jobs, [1, 2, 3, 4], capacity=capacity)
    slots = np.append(round_.configurations.slots, 0)[Fair().choose(round_, brute_force).chosen]
    assert sorted(slots.tolist()) == expected


def test_a_first_slot_counts_for_more_than_a_second_one() -> None:
    """Without slots a job counts as having a quarter of one: 4 + 1/2 against 1 + 1."""
    round_ = a_round([[1.0, 2.0]] * 2, [1, 2], capacity=2)
    assert Fair().choose(round_, brute_force).chosen.tolist() == [0, 0]
    choices = Fair(p=-1.0).choose(round_, brute_force)
    assert choices.idle.tolist() == [-4.0, -4.0]
    assert choices.utility[0].tolist() == pytest.approx([-1.0, -0.5], rel=1e-5)


def test_of_equal_shares_the_present_configuration_is_kept() -> None:
    held = a_round([[5.0, 5.0]], [1, 1], kind=[0, 1], capacity=1, current=[1])
    assert Fair().choose(held, brute_force).chosen.tolist() == [1]


@pytest.mark.parametrize(("weight", "expected"), [([0.0, 1.0], [-1, 1]), ([np.nan, 1.0], [0, 0])])
def test_a_weight_of_zero_waits_and_an_invalid_one_is_usual(weight: list[float], expected: list[int]) -> None:
    round_ = a_round([[1.0, 2.0]] * 2, [1, 2], capacity=2, weight=weight)
    assert Fair().choose(round_, brute_force).chosen.tolist() == expected


def test_a_share_of_a_project_multiplies_the_weight() -> None:
    four = [[1.0, 2.0, 3.0, 4.0]] * 2
    round_ = a_round(four, [1, 2, 3, 4], capacity=6, weight=[1.0, 1.0], share=[1.0, 2.0])
    assert Fair().choose(round_, brute_force).chosen.tolist() == [1, 3]


@drawn(st.integers(0, 10_000))
@settings(max_examples=20)
def test_choices_do_not_depend_on_the_unit_of_goodput(seed: int) -> None:
    round_ = random_round(seed, jobs=3, sizes=3)
    scaled = a_round(
        round_.goodput * 64.0,
        round_.configurations.slots,
        capacity=round_.rows[0].capacity,
        current=round_.current,
        weight=round_.weight,
    )
    first, second = (Fair().choose(one, brute_force) for one in (round_, scaled))
    assert first.utility == pytest.approx(second.utility)
