"""Tests of Gavel: time shares by hand, their realisation in rounds, and guaranteed jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.gavel import Gavel, time_shares
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round


def chosen(round_: Any) -> list[int]:
    return Gavel().choose(round_, brute_force).chosen.tolist()


def test_each_job_is_sent_to_the_kind_that_it_uses_best() -> None:
    throughput = np.array([[1.0, 10.0], [1.0, 0.0]])
    ones = np.ones((2, 2), dtype=np.int64)
    shares = time_shares(throughput, ones, np.array([1.0, 1.0]), np.ones(2))
    assert shares[0, 1] == pytest.approx(1.0)
    assert shares[1, 0] > 0.9


def test_rounds_give_the_shares_of_time() -> None:
    """Two jobs, one slot of each of two kinds: what they receive over 60 rounds is what the program wants."""
    round_ = a_round([[1.0, 4.0], [1.0, 3.0]], [1, 1], kind=[0, 1], capacity=1)
    served = np.zeros((2, 2))
    for index in range(1, 61):
        now = replace(round_, served_s=served.copy(), age_s=np.full(2, index * 60.0))
        chosen = Gavel().choose(now, brute_force).chosen
        served[np.arange(2), chosen] += np.where(chosen >= 0, 60.0, 0.0)
    wanted = time_shares(round_.goodput, np.ones((2, 2), dtype=np.int64), np.ones(2), np.ones(2))
    np.testing.assert_allclose(served / 3600, wanted, atol=0.05)


def test_a_job_has_the_size_that_it_asked_for() -> None:
    round_ = a_round([[1.0, 2.0, 4.0]], [1, 2, 4], capacity=8, requested_slots=[2])
    assert Gavel().choose(round_, brute_force).chosen.tolist() == [1]


@pytest.mark.parametrize(
    ("throughput", "slots", "capacity", "weight", "expected"),
    [
        # One kind: normalised throughput is slots * share * jobs, so equal jobs have equal shares.
        pytest.param([[1.0]] * 2, [[1]] * 2, [1.0], [1.0, 1.0], [[0.5], [0.5]], id="equal jobs"),
        pytest.param([[1.0], [9.0]], [[1]] * 2, [1.0], [1.0, 1.0], [[0.5], [0.5]], id="speed does not count"),
        pytest.param([[1.0]] * 2, [[1]] * 2, [1.0], [1.0, 3.0], [[0.25], [0.75]], id="weights"),
        # t = 1 * x1 = 2 * x2 and x1 + 2 * x2 = 2: both gain the same slots.
        pytest.param([[1.0]] * 2, [[1], [2]], [2.0], [1.0, 1.0], [[1.0], [0.5]], id="sizes"),
        pytest.param([[1.0]], [[1]], [4.0], [1.0], [[1.0]], id="at most all of the time"),
        pytest.param([[0.0], [1.0]], [[1]] * 2, [1.0], [1.0, 1.0], [[0.0], [1.0]], id="runs nowhere"),
        pytest.param([[1.0]] * 2, [[1]] * 2, [1.0], [0.0, 1.0], [[1e-6], [1.0]], id="no weight"),
    ],
)
def test_time_shares_by_hand(
    throughput: list[list[float]],
    slots: list[list[int]],
    capacity: list[float],
    weight: list[float],
    expected: list[list[float]],
) -> None:
    found = time_shares(np.array(throughput), np.array(slots), np.array(capacity), np.array(weight))
    assert found == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("served_s", "expected"), [([0.0, 600.0], [0, NOTHING]), ([600.0, 0.0], [NOTHING, 0])]
)
def test_the_job_that_received_less_of_its_share_has_its_turn(
    served_s: list[float], expected: list[int]
) -> None:
    round_ = a_round([[1.0]] * 2, [1], capacity=1, age_s=[1200.0] * 2, served_s=[[one] for one in served_s])
    assert chosen(round_) == expected


def test_between_equal_priorities_a_job_keeps_what_it_holds() -> None:
    served = {"age_s": [1200.0] * 2, "served_s": [[600.0]] * 2}
    assert chosen(a_round([[1.0]] * 2, [1], capacity=1, current=[NOTHING, 0], **served)) == [NOTHING, 0]
    assert chosen(a_round([[1.0]] * 2, [1], capacity=1, **served)) == [0, NOTHING]


def test_a_priority_is_the_share_over_the_fraction_received() -> None:
    round_ = a_round([[1.0]] * 2, [1], capacity=1, age_s=[1000.0] * 2, served_s=[[250.0], [750.0]])
    choices = Gavel().choose(round_, brute_force)
    assert choices.utility[:, 0].tolist() == pytest.approx([0.5 / 0.25, 0.5 / 0.75])
    assert choices.solution.objective == pytest.approx(2.0)
    assert choices.unit == "priority"


def test_a_job_that_never_ran_precedes_all_others() -> None:
    round_ = a_round(
        [[1.0]] * 3,
        [1],
        capacity=1,
        age_s=[1e6] * 3,
        served_s=[[100.0], [0.0], [100.0]],
        weight=[9.0, 1.0, 9.0],
    )
    assert chosen(round_) == [NOTHING, 0, NOTHING]


def test_of_several_configurations_of_a_kind_the_held_one_is_offered_else_the_best() -> None:
    two_of_a_size: dict[str, Any] = {"slots": [1, 1], "capacity": 1}
    assert chosen(a_round([[1.0, 2.0]], **two_of_a_size)) == [1]
    assert chosen(a_round([[1.0, 2.0]], current=[0], **two_of_a_size)) == [0]


def test_a_firm_job_keeps_its_slots_although_another_has_the_priority() -> None:
    round_ = a_round(
        [[1.0]] * 2, [1], capacity=1, current=[0, NOTHING], age_s=[1e4] * 2, served_s=[[9e3], [0.0]]
    )
    assert chosen(round_) == [NOTHING, 0]
    assert chosen(replace(round_, firm=np.array([True, False]))) == [0, NOTHING]


def test_a_job_whose_turn_is_next_precedes_the_share_of_time() -> None:
    round_ = a_round([[1.0]] * 2, [1], capacity=1, age_s=[1e4] * 2, served_s=[[9e3], [0.0]], seats=[0, 0])
    assert chosen(round_) == [NOTHING, 0]
    assert chosen(replace(round_, next_turn=np.array([1, 0]))) == [0, NOTHING]


def test_a_firm_job_keeps_even_a_size_that_it_did_not_request() -> None:
    round_ = a_round([[1.0, 2.0]], [1, 2], capacity=2, current=[1], requested_slots=[1], age_s=[1e3])
    assert chosen(round_) == [0]
    assert chosen(replace(round_, firm=np.array([True]))) == [1]


def test_a_firm_job_that_holds_nothing_usable_competes_like_the_others() -> None:
    round_ = a_round(
        [[1.0], [0.0]], [1], capacity=1, current=[NOTHING, 0], firm=[True, True], age_s=[1e3] * 2
    )
    assert chosen(round_) == [0, NOTHING]


def test_a_job_with_a_seat_precedes_a_higher_priority() -> None:
    round_ = a_round([[1.0]] * 2, [1], capacity=1, age_s=[1e4] * 2, served_s=[[9e3], [0.0]])
    assert chosen(replace(round_, seats=np.array([0, NOTHING]))) == [0, NOTHING]


@drawn(st.integers(0, 10_000))
@settings(max_examples=20)
def test_a_job_has_at_most_one_configuration_of_its_requested_size(seed: int) -> None:
    round_ = random_round(seed, kinds=2, sizes=3, requested_slots=[1, 2, 3, 2], age_s=np.full(4, 1e3))
    found = np.array(chosen(round_))
    assert is_feasible(round_.rows, found[None])[0]
    usual = np.append(round_.configurations.slots, 0)[found]
    runs = [{int(one) for one in round_.configurations.slots[row > 0]} for row in round_.goodput]
    for size, wanted, sizes in zip(usual, [1, 2, 3, 2], runs, strict=True):
        up_to = [one for one in sizes if one <= wanted]
        assert size in {0, max(up_to) if up_to else min(sizes, default=0)}


def test_a_configuration_without_a_share_is_no_choice() -> None:
    """The first job cannot run on the second kind, and the second one uses it best."""
    round_ = a_round([[1.0, 0.0], [0.1, 9.0], [0.0, 0.0]], [1, 1], kind=[0, 1], capacity=1, age_s=[1e3] * 3)
    choices = Gavel().choose(round_, brute_force)
    assert np.isneginf(choices.utility).tolist() == [[False, True], [True, False], [True, True]]
    assert choices.chosen.tolist() == [0, 1, NOTHING]


def test_a_job_that_does_not_fit_is_passed_over() -> None:
    """By priority: the third job on one slot, the first one on two of the slot left, the second one on one."""
    round_ = a_round(
        [[1.0, 2.0]] * 3,
        [1, 2],
        capacity=2,
        requested_slots=[2, 1, 1],
        age_s=[1e4] * 3,
        served_s=[[500.0], [9e3], [0.0]],
    )
    assert chosen(round_) == [NOTHING, 0, 0]
