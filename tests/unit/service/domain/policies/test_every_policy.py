"""Properties that every policy keeps for every input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round

NAMES = tuple(POLICIES)
NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-300, 1e-3, 1.0, 60.0, 1e6, 1e300])


def check(round_: RoundInput, choices: Choices) -> None:
    has = choices.chosen != NOTHING
    assert choices.chosen.shape == (len(round_.goodput),)
    assert round_.allowed[np.flatnonzero(has), choices.chosen[has]].all()
    assert is_feasible(round_.rows, choices.chosen[None, :])[0]
    assert not np.isnan(choices.utility).any()
    assert not np.isposinf(choices.utility).any()
    assert np.isfinite(choices.idle).all()
    assert np.isfinite(choices.utility[np.flatnonzero(has), choices.chosen[has]]).all(), (
        "no choice without worth"
    )
    assert choices.solution.bound >= choices.solution.objective
    assert choices.solution.prices.shape == (len(round_.rows),)
    assert choices.unit


@pytest.mark.parametrize("name", NAMES)
@drawn(st.data())
@settings(max_examples=6, deadline=None)
def test_nonsense_gives_an_answer(name: str, data: st.DataObject) -> None:
    jobs, sizes = 3, [1, 2, 4]

    def numbers(*shape: int) -> np.ndarray:
        drawn_ = data.draw(st.lists(NUMBERS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        return np.array(drawn_).reshape(shape)

    round_ = a_round(
        numbers(jobs, len(sizes)),
        sizes,
        capacity=4,
        current=[data.draw(st.integers(-1, 2)) for _ in range(jobs)],
        weight=numbers(jobs),
        age_s=numbers(jobs),
        waited_s=numbers(jobs),
        served_s=numbers(jobs, 1),
        served_slot_s=numbers(jobs),
        change_s=numbers(jobs),
        stop_s=numbers(jobs),
        remaining=numbers(jobs),
        changes=[data.draw(st.integers(-1, 5)) for _ in range(jobs)],
        requested_slots=[data.draw(st.integers(-1, 9)) for _ in range(jobs)],
        allowed=np.array(data.draw(st.lists(st.booleans(), min_size=9, max_size=9))).reshape(3, 3),
    )
    check(round_, policy(name).choose(round_, brute_force))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_two_kinds_quotas_and_pins_are_kept(name: str, seed: int) -> None:
    quota = Row(
        name="quota", capacity=2.0, demand=np.array([1.0, 2.0] * 2), jobs=np.array([True, True, False, False])
    )
    round_ = random_round(seed, kinds=2, sizes=2, capacity=3, rows=(quota,))
    pinned = int(np.argmax(round_.current))
    allowed = round_.allowed.copy()
    allowed[pinned] = np.arange(4) == round_.current[pinned]
    round_ = replace(round_, allowed=allowed)
    choices = policy(name).choose(round_, brute_force)
    check(round_, choices)
    assert choices.chosen[pinned] in {NOTHING, round_.current[pinned]}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_round_gives_the_same_choice(name: str) -> None:
    round_ = random_round(7, kinds=2, sizes=2)
    first, again = (policy(name).choose(round_, brute_force) for _ in range(2))
    assert (first.chosen == again.chosen).all()
    assert (first.utility == again.utility).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_jobs_and_no_configurations(name: str) -> None:
    no_jobs = a_round(np.zeros((0, 2)), [1, 2], capacity=4)
    check(no_jobs, policy(name).choose(no_jobs, solve))
    no_columns = a_round(np.zeros((2, 0)), [], capacity=4)
    check(no_columns, policy(name).choose(no_columns, solve))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capacity", [0.0, -1.0, np.nan])
def test_no_capacity_means_nothing_for_all(name: str, capacity: float) -> None:
    round_ = random_round(1, jobs=3, sizes=2, capacity=1)
    round_ = replace(round_, rows=tuple(replace(row, capacity=capacity) for row in round_.rows))
    assert (policy(name).choose(round_, brute_force).chosen == NOTHING).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_job_runs(name: str) -> None:
    round_ = a_round([[10.0, 18.0]], [1, 2], capacity=4)
    assert policy(name).choose(round_, brute_force).chosen[0] != NOTHING


@pytest.mark.parametrize("name", NAMES)
def test_nothing_changes_between_equal_jobs(name: str) -> None:
    """Two equal jobs that hold equal shares keep them."""
    round_ = a_round(
        [[10.0, 18.0]] * 2,
        [1, 2],
        capacity=4,
        current=[1, 1],
        age_s=[500.0] * 2,
        served_s=[[500.0]] * 2,
        served_slot_s=[1000.0] * 2,
        change_s=[20.0] * 2,
        remaining=[1e5] * 2,
        requested_slots=[2] * 2,
    )
    assert policy(name).choose(round_, brute_force).chosen.tolist() == [1, 1]
