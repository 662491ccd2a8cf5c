"""Tests of BFTrainer's rule: its published objective, what a change costs, and who is decided first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Problem, Row, Solution
from service.domain.policies.idle_fill import IdleFill
from tests.unit.service.domain.policies.rounds import a_round, brute_force, random_round


def published(given, forward_s: float) -> float:
    """BFTrainer's objective over counts by a direct dynamic program, for jobs of one kind that all are alike in weight."""
    slots = given.configurations.slots.tolist()
    capacity = int(given.rows[0].capacity)
    best = [0.0] * (capacity + 1)
    for job, goodput in enumerate(given.goodput):
        first = next((index for index, one in enumerate(goodput) if one > 0), None)
        scale = [one / goodput[first] * slots[first] if first is not None else 0.0 for one in goodput]
        now = given.current[job]
        size_now = slots[now] if now >= 0 else 0
        speed = scale[now] if now >= 0 else 0.0
        in_change, stop_s = (
            given.change_s[job] * speed,
            given.change_s if given.stop_s is None else given.stop_s,
        )
        worth = {0: -max(stop_s[job] * speed, in_change) if size_now else 0.0}
        for size, factor in zip(slots, scale, strict=True):
            if factor > 0:
                worth[size] = forward_s * factor - (in_change if size_now and size != size_now else 0.0)
        best = [
            max(worth[size] + best[free - size] for size in worth if size <= free)
            for free in range(capacity + 1)
        ]
    return best[capacity]


@pytest.mark.parametrize("seed", range(30))
def test_is_the_published_objective_over_counts(seed: int) -> None:
    given = random_round(seed, weight=np.full(4, 0.5))
    policy = IdleFill(forward_s=4.0)
    assert policy.choose(given, brute_force).solution.objective == pytest.approx(published(given, 4.0))


def test_a_job_may_take_the_whole_pool_in_one_step() -> None:
    # The published constant forbids 1 -> 8 of 8: a change by more than half of the pool.
    goodput = [[10.0 * size for size in range(1, 9)]]
    given = a_round(goodput, range(1, 9), capacity=8, current=np.array([0]), change_s=np.array([1.0]))
    assert IdleFill().choose(given, brute_force).chosen.tolist() == [7]


@pytest.mark.parametrize(("forward_s", "column"), [(1.9, 0), (2.1, 1)])
def test_a_change_must_pay_within_the_time_ahead(forward_s: float, column: int) -> None:
    given = a_round([[10.0, 20.0]], [1, 2], capacity=2, current=np.array([0]), change_s=np.array([2.0]))
    assert IdleFill(forward_s=forward_s).choose(given, brute_force).chosen.tolist() == [column]


@pytest.mark.parametrize("seed", range(30))
def test_opportunistic_jobs_take_nothing_from_the_others(seed: int) -> None:
    given = random_round(seed, weight=np.array([1.0, 0.5, 2.0, 0.9]))
    usual = np.array([True, False, True, False])
    alone = random_round(
        seed, weight=np.array([1.0, 0.5, 2.0, 0.9]), allowed=np.repeat(usual[:, None], 4, axis=1)
    )
    together = IdleFill().choose(given, brute_force)
    assert together.chosen[usual].tolist() == IdleFill().choose(alone, brute_force).chosen[usual].tolist()
    slots = np.append(given.configurations.slots, 0)
    assert slots[together.chosen].sum() <= given.rows[0].capacity
    value = np.concatenate([together.utility, together.idle[:, None]], axis=1)
    assert together.solution.objective == pytest.approx(value[np.arange(4), together.chosen].sum())
    assert together.solution.bound >= together.solution.objective


def test_opportunistic_jobs_fill_what_is_left() -> None:
    # However well they scale, they have two of six.
    given = a_round(
        [[1, 2, 4], [1, 1.2, 1.5]],
        [1, 2, 4],
        capacity=6,
        weight=np.array([0.5, 1.0]),
        current=np.array([2, -1]),
    )
    assert IdleFill().choose(given, brute_force).chosen.tolist() == [1, 2]


def test_a_row_that_binds_for_the_usual_jobs_has_their_price() -> None:
    prices = iter([np.array([5.0]), np.array([1.0])])

    def solve(problem: Problem) -> Solution:
        return replace(brute_force(problem), prices=next(prices))

    given = a_round([[1.0], [1.0]], [1], capacity=1, weight=np.array([1.0, 0.5]))
    assert IdleFill().choose(given, solve).solution.prices.tolist() == [5.0]


def test_worth_by_hand() -> None:
    """Ten seconds of the scaling factor, less two seconds at the present factor of 1.5 for a change."""
    round_ = a_round([[10.0, 15.0, 20.0]], [1, 2, 4], capacity=4, current=[1], change_s=[2.0])
    choices = IdleFill().choose(round_, brute_force)
    assert choices.utility[0].tolist() == pytest.approx([10.0 - 3.0, 15.0, 20.0 - 3.0])
    assert choices.idle.tolist() == pytest.approx([-3.0])
    assert choices.chosen.tolist() == [2]
    assert choices.unit == "slot-seconds of training"


def test_a_start_costs_nothing_and_so_does_waiting() -> None:
    round_ = a_round([[10.0, 15.0]], [1, 2], capacity=2, change_s=[100.0])
    choices = IdleFill().choose(round_, brute_force)
    assert choices.utility[0].tolist() == pytest.approx([10.0, 15.0])
    assert choices.idle.tolist() == [0.0]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1.0, 0.99], [0, -1]),
        ([0.99, 1.0], [-1, 0]),
        ([np.nan, 0.5], [0, -1]),
        ([0.5, np.nan], [-1, 0]),
    ],
)
def test_a_weight_below_one_makes_a_job_opportunistic(weight: list[float], expected: list[int]) -> None:
    round_ = a_round([[10.0]] * 2, [1], capacity=1, weight=weight)
    assert IdleFill().choose(round_, brute_force).chosen.tolist() == expected


def test_a_usual_job_takes_the_slots_of_an_opportunistic_one() -> None:
    round_ = a_round([[10.0]] * 2, [1], capacity=1, weight=[0.5, 1.0], current=[0, -1], change_s=[1e6, 1e6])
    assert IdleFill().choose(round_, brute_force).chosen.tolist() == [-1, 0]


def test_a_quota_of_usual_jobs_leaves_the_slots_to_the_others() -> None:
    quota = Row(name="quota", capacity=1.0, demand=np.array([1.0, 2.0]), jobs=np.array([True, False]))
    round_ = a_round([[10.0, 20.0]] * 2, [1, 2], capacity=3, weight=[1.0, 0.5], rows=(quota,))
    assert IdleFill().choose(round_, brute_force).chosen.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("optimal", "optimal", "optimal"),
        ("optimal", "within_gap", "within_gap"),
        ("limit", "within_gap", "limit"),
        ("within_gap", "limit", "limit"),
    ],
)
def test_the_status_of_both_steps_is_the_worse_one(first: str, second: str, expected: str) -> None:
    statuses = iter([first, second])

    def solve(problem: Problem) -> Solution:
        return replace(brute_force(problem), status=next(statuses))

    round_ = a_round([[1.0], [1.0]], [1], capacity=2, weight=[1.0, 0.5])
    solution = IdleFill().choose(round_, solve).solution
    assert (solution.status, solution.objective, solution.bound) == (expected, 20.0, 20.0)


def test_without_opportunistic_jobs_there_is_one_step() -> None:
    problems: list[Problem] = []

    def solve(problem: Problem) -> Solution:
        problems.append(problem)
        return brute_force(problem)

    IdleFill().choose(a_round([[1.0], [1.0]], [1], capacity=2), solve)
    assert len(problems) == 1


def test_the_second_step_has_the_capacity_that_the_first_one_left() -> None:
    problems: list[Problem] = []

    def solve(problem: Problem) -> Solution:
        problems.append(problem)
        return brute_force(problem)

    quota = Row(name="quota", capacity=9.0, demand=np.array([1.0, 2.0]), jobs=np.array([False, True]))
    round_ = a_round([[10.0, 20.0]] * 2, [1, 2], capacity=3, weight=[1.0, 0.5], rows=(quota,), current=[1, 0])
    IdleFill().choose(round_, solve)
    usual, opportunistic = problems
    assert [row.capacity for row in usual.rows] == [3.0, 9.0]
    assert [row.capacity for row in opportunistic.rows] == [1.0, 9.0]
    assert usual.current.tolist() == [1, -1]
    assert opportunistic.current.tolist() == [-1, 0]
    assert np.isneginf(usual.utility[1]).all()
    assert np.isneginf(opportunistic.utility[0]).all()


def test_a_configuration_that_cannot_run_is_no_choice() -> None:
    round_ = a_round([[10.0, 0.0]], [1, 2], capacity=2, current=[0], change_s=[1.0])
    assert IdleFill().choose(round_, brute_force).utility[0].tolist() == [10.0, -np.inf]
