"""Local batches by expected speeds, and within the rule of the job file."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.orders import BatchPlan
from headway.contract.values.balance import BalanceRule
from headway.train.data.batching import Batching
from headway.train.data.uneven import Balancer
from tests.unit.headway.train.data.test_batching import ADAPTIVE, FIXED
from tests.unit.headway.train.data.test_uneven import Machine, balanced, proportional

# Expected speeds and the rule of the job file


@pytest.mark.parametrize(
    ("speeds", "batch", "local_batches"),
    [
        ((4, 1), 320, (256, 64)),
        ((1, 1, 4), 60, (10, 10, 40)),
        ((3, 5, 12), 300, (45, 75, 180)),
        ((1000, 1), 8, (7, 1)),  # every rank needs a sample
        ((2, 2), 9, (5, 4)),
        ((4, 1, 1), 320, (160, 160)),  # of other ranks: ignored
        ((), 7, (4, 3)),
    ],
)
def test_the_first_step_is_divided_by_expected_speeds(
    speeds: tuple[float, ...], batch: int, local_batches: tuple[int, ...]
) -> None:
    assert Balancer(batch, len(local_batches), speeds=speeds).local_batches == local_batches


def test_measured_speeds_replace_wrong_expectations() -> None:
    machine = Machine(proportional(1, 3), 400)
    machine.balancer = Balancer(400, 2, speeds=(3, 1))
    assert machine.balancer.local_batches == (300, 100)
    machine.train(40)
    assert machine.balancer.local_batches == (100, 300)


def test_right_expectations_are_never_changed() -> None:
    machine = Machine(proportional(4, 1), 320, noise=0.05, seed=3)
    machine.balancer = Balancer(320, 2, speeds=(4, 1))
    assert machine.train(200) == 0


def test_a_newcomer_of_a_faster_kind_is_expected_to_be_faster() -> None:
    machine = balanced(1, 1)
    grown = machine.balancer.for_members([0, 1, None], speeds=(1, 1, 4))
    assert grown.local_batches == (50, 50, 200)
    assert machine.balancer.for_members([0, 1, None]).local_batches == (100, 100, 100)


def test_measured_survivors_of_two_kinds_scale_a_newcomer_by_their_median() -> None:
    # Expected 4:1, measured 6:1. The costs at speed 1 are 4/6 and 1, their median 5/6: the newcomer's speed is 1.2 * 4.
    machine = balanced(6, 1, batch=700)
    grown = machine.balancer.for_members([0, 1, None], 1180, speeds=(4, 1, 4))
    assert grown.local_batches == (600, 100, 480)


def test_without_a_measurement_the_next_members_start_from_expected_speeds() -> None:
    assert Balancer(10, 2).for_members([0, 1, None], speeds=(2, 2, 1)).local_batches == (4, 4, 2)


@pytest.mark.parametrize(
    ("rule", "local_batches"),
    [
        (BalanceRule(), (80, 20)),
        (BalanceRule(min_share=0.5), (75, 25)),
        (BalanceRule(max_share=1.2), (60, 40)),
        (BalanceRule(min_share=1.0), (50, 50)),
        (BalanceRule(dead_band=0.99), (50, 50)),
    ],
)
def test_the_rule_bounds_local_batches(rule: BalanceRule, local_batches: tuple[int, int]) -> None:
    machine = Machine(proportional(4, 1), 100)
    machine.balancer = Balancer(100, 2, rule=rule)
    machine.train(60)
    assert machine.balancer.local_batches == local_batches
    if rule.dead_band < 0.9:
        assert Balancer(100, 2, rule=rule, speeds=(4, 1)).local_batches == local_batches
        assert machine.balancer.for_members([0, 1], 200).local_batches == tuple(
            2 * one for one in local_batches
        )


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=6),
    st.integers(1, 200),
    st.floats(0, 1),
    st.floats(1, 8),
    st.integers(0, 9999),
)
@settings(max_examples=60)
def test_no_rule_or_expectation_changes_the_sum(
    speeds: list[float], each: int, low: float, high: float, seed: int
) -> None:
    rule = BalanceRule(dead_band=0.0, min_share=low, max_share=high)
    machine = Machine(proportional(*speeds), each * len(speeds), noise=0.1, seed=seed)
    machine.balancer = Balancer(each * len(speeds), len(speeds), rule=rule, speeds=speeds[::-1])
    machine.train(30)
    assert machine.sums == {each * len(speeds)}
    assert min(machine.balancer.local_batches) >= math.floor(low * each - 1e-5)
    assert max(machine.balancer.local_batches) <= math.ceil(high * each + 1e-5)
    shrunk = machine.balancer.for_members([0, None], each * 2, speeds=speeds[:2])
    assert sum(shrunk.local_batches) == each * 2


def test_expected_speeds_divide_the_first_step_and_that_of_new_members() -> None:
    batching = Batching(FIXED, 0, 2, speeds=(3.0, 1.0))
    assert batching.local_batches == (48, 16)
    batching.change_members([0, 1, None, None], rank=0, speeds=(3.0, 1.0, 3.0, 1.0))
    assert batching.local_batches == (24, 8, 24, 8)
    batching.change_members([0, 2], rank=0)
    assert batching.local_batches == (32, 32)
    even = Batching(replace(FIXED, balance=None), 0, 2, speeds=(3.0, 1.0))
    assert even.local_batches == (32, 32)


def test_a_sharded_model_keeps_even_batches_whatever_is_expected() -> None:
    batching = Batching(FIXED, 0, 2, speeds=(3.0, 1.0))
    batching.keep_in_step()
    batching.change_members([0, 1], rank=0, speeds=(3.0, 1.0))
    assert batching.local_batches == (32, 32)


def test_an_adaptive_batch_starts_and_changes_by_expected_speeds() -> None:
    batching = Batching(replace(ADAPTIVE, start_global=128), 0, 2, speeds=(3.0, 1.0))
    assert batching.local_batches == (96, 32)
    assert batching.follow(BatchPlan(global_batch=256))
    assert batching.local_batches == (192, 64)
