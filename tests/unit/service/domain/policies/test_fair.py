from __future__ import annotations

import numpy as np
import pytest

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
