"""Tests of ONES: the least remaining GPU-time of a full pool, unknown lengths, and limits of sizes."""

from __future__ import annotations

import numpy as np
import pytest

from service.domain.policies.ones import Ones
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    random_round,
)


def published(given, choices: np.ndarray) -> np.ndarray:
    """(N,) remaining GPU-time of the jobs that choices (N, J) schedule; infinite where one cannot run."""
    slots = given.configurations.slots
    cannot = given.goodput <= 0
    left = np.where(cannot, np.inf, slots * given.remaining[:, None] / np.where(cannot, 1.0, given.goodput))
    table = np.concatenate([left, np.zeros((len(left), 1))], axis=1)
    return table[np.arange(len(left)), choices].sum(axis=1)


@pytest.mark.parametrize("seed", range(30))
def test_has_the_least_remaining_gpu_time_of_all_fullest_schedules(seed: int) -> None:
    remaining = np.random.default_rng(seed).uniform(1e3, 1e6, 4)
    given = random_round(seed, remaining=remaining)
    choices = every_choice(4, 4)
    cost = published(given, choices)
    possible = is_feasible(given.rows, choices) & np.isfinite(cost)
    taken = np.append(given.configurations.slots, 0)[choices].sum(axis=1)
    fullest = possible & (taken == taken[possible].max())
    chosen = Ones(limit_sizes=0.0).choose(given, brute_force).chosen
    assert np.append(given.configurations.slots, 0)[chosen].sum() == taken[possible].max()
    assert published(given, chosen[None])[0] == pytest.approx(cost[fullest].min())


@pytest.mark.parametrize("seed", range(20))
def test_two_kinds_are_filled_by_the_shared_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    goodput = rng.uniform(1, 10, (4, 2))
    given = a_round(goodput, [1, 1], kind=[0, 1], capacity=1, remaining=rng.uniform(10, 1000, 4))
    chosen = Ones(limit_sizes=0.0).choose(given, brute_force).chosen
    choices = every_choice(4, 2)
    full = choices[is_feasible(given.rows, choices) & ((choices >= 0).sum(axis=1) == 2)]
    assert published(given, chosen[None])[0] == pytest.approx(published(given, full).min())


def test_a_job_of_unknown_length_has_as_much_before_it_as_behind_it() -> None:
    given = a_round(
        [[10.0], [10.0]],
        [1],
        capacity=1,
        remaining=np.array([np.nan, 1000.0]),
        served_slot_s=np.array([50.0, 0.0]),
    )
    assert Ones(limit_sizes=0.0).choose(given, brute_force).chosen.tolist() == [0, -1]
    older = a_round(
        [[10.0], [10.0]],
        [1],
        capacity=1,
        remaining=np.array([np.nan, 1000.0]),
        served_slot_s=np.array([150.0, 0.0]),
    )
    assert Ones(limit_sizes=0.0).choose(older, brute_force).chosen.tolist() == [-1, 0]


def test_sizes_are_limited_as_published() -> None:
    def slots(current: int, requested: int) -> int:
        given = a_round(
            [[1.0, 2, 4, 8]],
            [1, 2, 4, 8],
            capacity=8,
            remaining=np.array([100.0]),
            current=np.array([current]),
            requested_slots=np.array([requested]),
        )
        column = Ones().choose(given, brute_force).chosen[0]
        return int(given.configurations.slots[column])

    assert slots(-1, 4) == 1
    assert slots(1, 4) == 4
    assert slots(2, 1) == 4
    assert slots(2, 2) == 8


def test_jobs_that_are_about_to_end_run_too() -> None:
    given = a_round(np.full((2, 2), 10.0), [1, 1], kind=[0, 1], capacity=1, remaining=np.zeros(2))
    assert sorted(Ones(limit_sizes=0.0).choose(given, brute_force).chosen.tolist()) == [0, 1]


def test_a_full_pool_comes_before_any_saving() -> None:
    # Two slots would do nearly nothing else; three are full.
    given = a_round([[10.0, 0.0], [0.0, 1.0]], [2, 3], capacity=3, remaining=np.array([1.0, 1e6]))
    assert Ones(limit_sizes=0.0).choose(given, brute_force).chosen.tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("remaining", "served_slot_s", "goodput", "expected"),
    [
        # slots * remaining / goodput.
        (100.0, 0.0, [10.0, 16.0], [10.0, 12.5]),
        (100.0, 0.0, [10.0, 0.0], [10.0, 0.0]),
        (0.0, 50.0, [10.0, 16.0], [0.0, 0.0]),
        # Unknown: 50 slot-seconds at 10 samples per slot-second are 500 samples.
        (np.nan, 50.0, [10.0, 16.0], [50.0, 62.5]),
        (-1.0, 50.0, [10.0, 16.0], [50.0, 62.5]),
        (np.nan, np.nan, [10.0, 16.0], [0.0, 0.0]),
    ],
)
def test_the_worth_of_a_slot_less_the_remaining_gpu_time(
    remaining: float, served_slot_s: float, goodput: list[float], expected: list[float]
) -> None:
    round_ = a_round([goodput], [1, 2], capacity=2, remaining=[remaining], served_slot_s=[served_slot_s])
    utility = Ones(limit_sizes=0.0).choose(round_, brute_force).utility[0]
    fill = 2 * max(1.0, *(left / slots for left, slots in zip(expected, (1, 2), strict=True)))
    by_hand = [
        fill * slots - left if rate > 0 else -np.inf
        for left, slots, rate in zip(expected, (1, 2), goodput, strict=True)
    ]
    assert utility.tolist() == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("held", "requested", "largest"),
    [
        (None, 1, 1),  # a start has the smallest size
        (0, 1, 2),
        (0, 8, 2),
        (1, 1, 4),  # twice the present size and four times the requested one
        (2, 1, 4),
        (2, 2, 8),
        (3, 1, 4),  # a size beyond the limit must shrink
        (0, 0, 1),
    ],
)
def test_the_largest_size_by_present_and_requested_size(
    held: int | None, requested: int, largest: int
) -> None:
    round_ = a_round(
        [[1.0, 2.0, 4.0, 8.0]],
        [1, 2, 4, 8],
        capacity=8,
        remaining=[100.0],
        current=[-1 if held is None else held],
        requested_slots=[requested],
    )
    utility = Ones().choose(round_, brute_force).utility[0]
    assert round_.configurations.slots[np.isfinite(utility)].max() == largest


def test_the_smallest_size_is_always_allowed() -> None:
    round_ = a_round([[0.0, 0.0, 4.0]], [1, 2, 4], capacity=4, remaining=[100.0], requested_slots=[1])
    assert Ones().choose(round_, brute_force).chosen.tolist() == [2]


def test_waiting_is_worth_nothing_and_slots_have_a_unit() -> None:
    choices = Ones().choose(a_round([[1.0]], [1], capacity=0, remaining=[1.0]), brute_force)
    assert (choices.idle.tolist(), choices.chosen.tolist(), choices.unit) == ([0.0], [-1], "slot-seconds")
