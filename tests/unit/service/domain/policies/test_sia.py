"""Tests of Sia: its published objective over all choices, terms by hand, and the cost of changes."""

from __future__ import annotations

import numpy as np
import pytest

from service.domain.policies.registry import policy
from service.domain.policies.sia import Sia
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    random_round,
)


def published(round_, choice: np.ndarray, p: float, penalty: float) -> float:
    """Return Sia's objective, term by term."""
    total = 0.0
    for job, column in enumerate(choice):
        if column < 0:
            total += penalty
            continue
        goodput, age, cost = round_.goodput[job], round_.age_s[job], round_.change_s[job]
        if goodput[column] == 0:
            return np.inf
        ratio = goodput[column] / goodput[goodput > 0].min()
        if round_.current[job] >= 0 and column != round_.current[job]:
            ratio *= max(age - round_.changes[job] * cost, 0) / (age + cost)
        if ratio == 0:
            return np.inf
        total += ratio**p
    return total


@pytest.mark.parametrize("p", [-0.5, -1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_published_sum_is_at_its_lowest(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    round_ = random_round(
        seed,
        jobs=3,
        kinds=2,
        sizes=2,
        weight=np.ones(3),
        age_s=rng.uniform(5, 500, 3),
        changes=rng.integers(0, 5, 3),
    )
    choices = every_choice(3, 4)
    choices = choices[is_feasible(round_.rows, choices)]
    chosen = policy("sia", {"p": p}).choose(round_, brute_force).chosen
    best = min(published(round_, choice, p, 1.1) for choice in choices)
    assert published(round_, chosen, p, 1.1) == pytest.approx(best)


def test_configurations_a_few_percent_apart_are_told_apart() -> None:
    """Their code rounds the powers to two decimals, so that 20.0 and 21.0 are a tie."""
    round_ = a_round([[1.0, 20.0, 21.0]], [1, 8, 9], capacity=16)
    assert Sia().choose(round_, brute_force).chosen.tolist() == [2]


def test_priorities_decide_who_gets_the_better_share() -> None:
    round_ = a_round([[1.0, 1.9]] * 2, [1, 2], capacity=3, weight=[1.0, 2.0])
    assert Sia().choose(round_, brute_force).chosen.tolist() == [0, 1]


def test_terms_by_hand() -> None:
    """The smallest goodput of a row is 1, p is -1/2, and a job without slots costs lambda times its weight."""
    round_ = a_round([[4.0, 9.0, 0.0], [2.0, 8.0, 18.0]], [1, 2, 4], capacity=4, weight=[1.0, 2.0])
    choices = Sia().choose(round_, brute_force)
    assert choices.utility[0].tolist() == pytest.approx([-1.0, -2 / 3, -np.inf])
    assert choices.utility[1].tolist() == pytest.approx([-2.0, -1.0, -2 / 3])
    assert choices.idle.tolist() == pytest.approx([-1.1, -2.2])
    assert choices.unit == "normalised goodput weighted by fairness"


def test_the_smallest_goodput_counts_although_it_is_not_allowed_now() -> None:
    round_ = a_round([[4.0, 16.0]], [1, 2], capacity=2, allowed=[[False, True]])
    assert Sia().choose(round_, brute_force).utility[0].tolist() == pytest.approx([-np.inf, -0.5])


@pytest.mark.parametrize(
    ("age_s", "changes", "change_s", "factor"),
    [(90.0, 0, 30.0, 90 / 120), (90.0, 1, 30.0, 60 / 120), (90.0, 5, 0.0, 1.0)],
)
def test_another_configuration_is_worth_less_by_the_restart_factor(
    age_s: float, changes: int, change_s: float, factor: float
) -> None:
    fields = {"current": [0], "age_s": [age_s], "changes": [changes], "change_s": [change_s]}
    utility = Sia(p=-1.0).choose(a_round([[10.0, 40.0]], [1, 2], capacity=2, **fields), brute_force).utility
    assert utility[0].tolist() == pytest.approx([-1.0, -1 / (4 * factor)])


def test_a_job_whose_factor_is_zero_may_only_keep_what_it_holds() -> None:
    fields = {"current": [0], "age_s": [30.0], "changes": [2], "change_s": [30.0]}
    utility = Sia().choose(a_round([[10.0, 40.0]], [1, 2], capacity=2, **fields), brute_force).utility
    assert utility[0].tolist() == [-1.0, -np.inf]


@pytest.mark.parametrize(("idle_penalty", "expected"), [(0.0, -1), (0.99, -1), (1.01, 0), (9.0, 0)])
def test_a_job_waits_if_lambda_is_less_than_its_slowest_configuration(
    idle_penalty: float, expected: int
) -> None:
    round_ = a_round([[10.0]], [1], capacity=1)
    assert Sia(idle_penalty=idle_penalty).choose(round_, brute_force).chosen.tolist() == [expected]


@pytest.mark.parametrize(("p", "expected"), [(-8.0, [1, 1]), (-0.1, [2, 0])])
def test_a_lower_exponent_helps_the_worst_off(p: float, expected: list[int]) -> None:
    """Ratios of 9 and 1 have the better mean of logarithms, ratios of 2 and 2 the better minimum."""
    round_ = a_round([[1.0, 2.0, 9.0], [1.0, 2.0, 2.1]], [1, 2, 3], capacity=4)
    assert Sia(p=p).choose(round_, brute_force).chosen.tolist() == expected
