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
    """What Sia minimises, term by term."""
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
