"""Tests of Pollux: its published fitness over all choices, terms by hand, and the cost of changes."""

from __future__ import annotations

import numpy as np
import pytest

from service.domain.policies.pollux import Pollux
from service.domain.policies.registry import policy
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    random_round,
)


def fitness(round_, choices: np.ndarray, p: float = -1.0, restart_s: float = 30.0) -> np.ndarray:
    """(N,) the published fitness of choices (N, J), job by job as the paper writes it."""
    slots = round_.configurations.slots
    total = sum(row.capacity for row in round_.rows[: len(round_.configurations.kinds)])
    jobs = len(round_.goodput)
    fair = max(int(np.ceil(total / jobs)), 1)
    value = np.zeros(len(choices))
    for index, choice in enumerate(choices):
        terms = []
        for job, column in enumerate(choice):
            goodput, age = round_.goodput[job], round_.age_s[job]
            runs = slots[goodput > 0]
            speedup = 0.0
            if column >= 0 and goodput[column] > 0:
                speedup = goodput[column] / goodput[slots <= max(fair, runs.min())].max()
                if round_.current[job] >= 0 and column != round_.current[job]:
                    speedup *= max(age - round_.changes[job] * restart_s, 0) / (age + restart_s)
            terms.append((speedup + 1e-3) ** p)
        value[index] = np.mean(terms) ** (1 / p)
    return value


@pytest.mark.parametrize("p", [-1.0, -0.5, -3.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_published_fitness_is_at_its_highest(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    round_ = random_round(
        seed,
        jobs=3,
        sizes=4,
        weight=np.ones(3),
        age_s=rng.uniform(0, 500, 3),
        changes=rng.integers(0, 5, 3),
    )
    choices = every_choice(3, 4)
    possible = np.concatenate([round_.goodput > 0, np.ones((3, 1), dtype=bool)], axis=1)
    choices = choices[is_feasible(round_.rows, choices) & possible[np.arange(3), choices].all(axis=1)]
    chosen = policy("pollux", {"p": p}).choose(round_, brute_force).chosen
    assert fitness(round_, chosen[None, :], p)[0] == pytest.approx(fitness(round_, choices, p).max())


def test_nobody_is_left_without_slots_where_all_could_have_some() -> None:
    round_ = a_round([[1.0, 2.0, 3.0]] * 3, [1, 2, 3], capacity=3)
    assert Pollux().choose(round_, brute_force).chosen.tolist() == [0, 0, 0]


def test_a_job_that_was_just_changed_is_left_alone() -> None:
    """Its restart factor is 0, so that all but its present configuration count as nothing."""
    running = {"current": [0, -1], "age_s": [60.0, 60.0], "changes": [2, 0]}
    round_ = a_round([[10.0, 40.0], [10.0, 11.0]], [1, 2], capacity=3, **running)
    assert Pollux().choose(round_, brute_force).chosen.tolist() == [0, 1]
    settled = a_round([[10.0, 40.0], [10.0, 11.0]], [1, 2], capacity=3, current=[0, -1], age_s=[9e3, 60.0])
    assert Pollux().choose(settled, brute_force).chosen.tolist() == [1, 0]


def test_terms_by_hand() -> None:
    """Two jobs on four slots: the fair share is two slots, and p is -1."""
    round_ = a_round([[10.0, 15.0, 0.0], [10.0, 15.0, 20.0]], [1, 2, 4], capacity=4, weight=[1.0, 3.0])
    choices = Pollux().choose(round_, brute_force)
    assert choices.utility[0].tolist() == pytest.approx([-1 / (2 / 3 + 1e-3), -1 / (1 + 1e-3), -np.inf])
    assert choices.utility[1].tolist() == pytest.approx(
        [-3 / (2 / 3 + 1e-3), -3 / (1 + 1e-3), -3 / (4 / 3 + 1e-3)]
    )
    assert choices.idle.tolist() == pytest.approx([-1000.0, -3000.0])
    assert choices.unit == "fitness"


@pytest.mark.parametrize(
    ("restart_s", "age_s", "changes", "factor"),
    [(30.0, 90.0, 0, 90 / 120), (30.0, 90.0, 1, 60 / 120), (0.0, 90.0, 9, 1.0), (30.0, 20.0, 1, 0.0)],
)
def test_another_configuration_is_worth_less_by_the_restart_factor(
    restart_s: float, age_s: float, changes: int, factor: float
) -> None:
    round_ = a_round([[10.0, 20.0]], [1, 2], capacity=2, current=[0], age_s=[age_s], changes=[changes])
    utility = Pollux(restart_s=restart_s).choose(round_, brute_force).utility
    assert utility[0].tolist() == pytest.approx([-1 / (0.5 + 1e-3), -1 / (factor + 1e-3)])


def test_a_start_costs_nothing() -> None:
    waiting = a_round([[10.0, 20.0]], [1, 2], capacity=2, age_s=[5.0], changes=[9])
    assert Pollux().choose(waiting, brute_force).utility[0, 1] == pytest.approx(-1 / (1 + 1e-3))


@pytest.mark.parametrize(("p", "expected"), [(-8.0, [1, 1]), (-0.1, [2, 0])])
def test_a_lower_exponent_helps_the_worst_off(p: float, expected: list[int]) -> None:
    """Speedups of 4 and 0.5 have the better mean of logarithms, speedups of 1 and 1 the better minimum."""
    round_ = a_round([[8.0, 10.0, 40.0], [5.0, 10.0, 11.0]], [1, 2, 3], capacity=4)
    assert Pollux(p=p).choose(round_, brute_force).chosen.tolist() == expected
