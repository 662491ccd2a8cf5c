"""Tests of each factor of the default policy by hand: weight, rank, patience, changes, and thrift."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.policies.framework.policy import Choices
from service.domain.policies.goodput import Goodput
from tests.unit.service.domain.policies.rounds import a_round, brute_force, random_round

PLAIN = Goodput(p=1.0, shortest_first=0.0)
"""Linear speedups, without a preference for shorter jobs."""


def choices(policy: Goodput = PLAIN, *, jobs: int = 1, **fields: Any) -> Choices:
    """Return the choices for jobs of goodput 10, 15 and 20 on 1, 2 and 4 slots, of which there are four a job."""
    round_ = a_round([[10.0, 15.0, 20.0]] * jobs, [1, 2, 4], capacity=4 * jobs, **fields)
    return policy.choose(round_, brute_force)


def test_the_speedup_is_relative_to_a_fair_share() -> None:
    found = choices()
    assert found.utility[0].tolist() == pytest.approx([0.5, 0.75, 1.0])
    assert found.idle.tolist() == [0.0]
    assert found.unit == "speedup weighted by priority and fairness"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8, 1.0])
def test_speedups_are_raised_to_the_power_p(p: float) -> None:
    found = choices(Goodput(p=p, shortest_first=0.0)).utility[0]
    assert found.tolist() == pytest.approx([0.5**p, 0.75**p, 1.0])


@pytest.mark.parametrize("goodput", [0.0, math.nan, -1.0])
def test_a_configuration_that_cannot_run_is_no_choice(goodput: float) -> None:
    found = PLAIN.choose(a_round([[10.0, goodput]], [1, 2], capacity=1, current=[0]), brute_force)
    assert found.utility[0].tolist() == [1.0, -math.inf]


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"weight": [3.0]}, 3.0),
        ({"weight": [3.0], "share": [0.5]}, 1.5),
        # The square of 1 plus the wait over the time served and an hour.
        ({"age_s": [3600.0]}, 4.0),
        ({"age_s": [3600.0], "served_s": [[3600.0]]}, 1.0),
        ({"age_s": [7200.0], "served_s": [[3600.0]]}, 1.5**2),
        ({"age_s": [100.0], "served_s": [[100.0]], "waited_s": [1850.0]}, 1.5**2),
        ({"age_s": [math.nan]}, 1.0),
    ],
)
def test_weight_and_patience_multiply_the_speedup(fields: dict[str, Any], factor: float) -> None:
    assert choices(**fields).utility[0].tolist() == pytest.approx([0.5 * factor, 0.75 * factor, factor])


def test_patience_may_be_shorter() -> None:
    found = choices(Goodput(p=1.0, shortest_first=0.0, patience_s=60.0), age_s=[60.0])
    assert found.utility[0, 2] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("shortest_first", "expected"), [(0.0, [1.0, 1.0, 1.0]), (1.0, [1.0, 3.0, 2.0]), (2.0, [1.0, 9.0, 4.0])]
)
def test_shorter_jobs_have_higher_ranks(shortest_first: float, expected: list[float]) -> None:
    policy = Goodput(p=1.0, shortest_first=shortest_first)
    found = choices(policy, jobs=3, remaining=[3e4, 1e4, 2e4]).utility[:, 2]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        # A start of 50 s, charged twice, leaves 500 / 600 of the 500 s until the next change.
        pytest.param({"change_s": [50.0]}, 500 / 600, id="a start"),
        pytest.param({"change_s": [0.0]}, 1.0, id="costs nothing"),
        pytest.param({"change_s": [0.0], "remaining": [0.0]}, 1.0, id="costs nothing at the end"),
        pytest.param({"change_s": [math.nan]}, 1.0, id="unknown cost"),
        # Three quarters of the mean time between changes: 0.75 * 4000 / (1 + 3) = 750 s.
        pytest.param(
            {"change_s": [50.0], "age_s": [4000.0], "changes": [3], "served_s": [[4000.0]]},
            750 / 850,
            id="changes so far",
        ),
        pytest.param(
            {"change_s": [50.0], "age_s": [400.0], "served_s": [[400.0]]}, 500 / 600, id="at least settled_s"
        ),
        # 2,000 samples at 20 samples per second take 100 s.
        pytest.param({"change_s": [50.0], "remaining": [2000.0]}, 100 / 200, id="the end comes first"),
        pytest.param({"change_s": [50.0], "remaining": [1e9]}, 500 / 600, id="the end comes later"),
    ],
)
def test_a_change_leaves_a_fraction_of_the_time_until_the_next_one(
    fields: dict[str, Any], left: float
) -> None:
    assert choices(**fields).utility[0, 2] == pytest.approx(left)


def test_the_held_configuration_needs_no_change_and_losing_it_needs_one_later() -> None:
    """A change leaves 5/6. The job holds 0.75; losing all of it costs 1/6 of that, losing a third a third of it."""
    found = choices(current=[1], change_s=[50.0])
    back = 0.75 / 6
    assert found.utility[0].tolist() == pytest.approx([0.5 * 5 / 6 - back / 3, 0.75, 5 / 6])
    assert found.idle.tolist() == pytest.approx([-back])


def test_losing_all_slots_costs_a_restart_also_for_a_job_that_changes_in_place() -> None:
    """A stop of 50 s leaves 5/6; a change in place costs nothing, so the loss of a part is not charged."""
    found = choices(current=[1], change_s=[0.0], stop_s=[50.0])
    assert found.utility[0].tolist() == pytest.approx([0.5, 0.75, 1.0])
    assert found.idle.tolist() == pytest.approx([-0.75 / 6])


def test_a_change_of_an_exponent_below_one() -> None:
    policy = Goodput(p=0.5, shortest_first=0.0)
    found = choices(policy, current=[2], change_s=[50.0])
    back = 1.0 / 6
    small = math.sqrt(0.5 * 5 / 6) - back * (1 - math.sqrt(0.5))
    assert found.utility[0, [0, 2]].tolist() == pytest.approx([small, 1.0])
    assert found.idle.tolist() == pytest.approx([-back])


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_thrift_multiplies_the_worth_by_its_power(p: float) -> None:
    policy = Goodput(p=p, shortest_first=0.0)
    usual = choices(policy).utility[0]
    thrifty = choices(policy, thrift=[[1.0, 0.5, 0.25]]).utility[0]
    assert thrifty.tolist() == pytest.approx((usual * np.array([1.0, 0.5**p, 0.25**p])).tolist())


def test_a_job_that_holds_nothing_loses_nothing() -> None:
    assert choices(change_s=[1e6]).idle.tolist() == [0.0]
    assert choices(change_s=[1e6], current=[7]).idle.tolist() == [0.0]


@drawn(st.integers(0, 10_000), st.floats(0.01, 100.0))
@settings(max_examples=20)
def test_utilities_have_no_unit_of_samples(seed: int, factor: float) -> None:
    round_ = random_round(seed, jobs=3, sizes=3)
    fields = {"current": round_.current, "change_s": round_.change_s, "weight": round_.weight}
    scaled = a_round(
        factor * round_.goodput,
        [1, 2, 3],
        capacity=round_.rows[0].capacity,
        remaining=factor * round_.remaining,
        **fields,
    )
    usual = a_round(
        round_.goodput, [1, 2, 3], capacity=round_.rows[0].capacity, remaining=round_.remaining, **fields
    )
    first, second = (Goodput().choose(one, brute_force) for one in (usual, scaled))
    assert first.utility == pytest.approx(second.utility)
    assert first.idle == pytest.approx(second.idle)


@drawn(st.integers(0, 10_000))
@settings(max_examples=20)
def test_a_longer_wait_never_lowers_a_job(seed: int) -> None:
    round_ = random_round(seed, jobs=3, sizes=3, current=np.full(3, -1), age_s=np.full(3, 100.0))
    waited = random_round(
        seed, jobs=3, sizes=3, current=np.full(3, -1), age_s=np.array([100.0, 900.0, 100.0])
    )
    before, after = (PLAIN.choose(one, brute_force).utility for one in (round_, waited))
    runs = np.isfinite(before[1])
    assert (after[1][runs] > before[1][runs]).all()
