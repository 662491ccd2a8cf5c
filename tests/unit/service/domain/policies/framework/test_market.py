"""Tests of Shockwave's plan of a window: hand calculations of its formulas, and the best plan by trying all."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from service.domain.policies.framework.market import (
    Buyers,
    MarketRules,
    finish_target_s,
    log_progress,
    plan_window,
    unfairness,
)

RULES = MarketRules(rounds=4, round_s=100.0, makespan_weight=0.0, unfairness_power=2.0, max_rho=1.0)


def buyers(*remaining_s: float, capacity: float = 1.0, **fields: Any) -> Buyers:
    """Return new jobs of one slot that no target binds."""
    jobs = len(remaining_s)
    given = {
        "slots": np.ones(jobs),
        "age_s": np.zeros(jobs),
        "elapsed_s": np.zeros(jobs),
        "target_s": np.full(jobs, 1e9),
        "weight": np.ones(jobs),
    }
    given |= {name: np.array(value, dtype=float) for name, value in fields.items()}
    return Buyers(capacity=capacity, remaining_s=np.array(remaining_s, dtype=float), **given)


def rounds(who: Buyers, **fields: Any) -> list[int]:
    return plan_window(who, replace(RULES, **fields)).rounds.tolist()


@pytest.mark.parametrize(("part", "expected"), [
    (0.0, math.log(1e-6)),
    (0.1, (math.log(1e-6) + math.log(0.2)) / 2),
    (0.2, math.log(0.2)),
    (0.5, (math.log(0.4) + math.log(0.6)) / 2),
    (0.9, math.log(0.8) / 2),
    (1.0, 0.0),
])  # fmt: skip
def test_the_logarithm_is_linear_between_the_published_points(part: float, expected: float) -> None:
    assert log_progress(np.array([part]))[0] == pytest.approx(expected)


def test_the_share_is_that_of_jobs_whatever_their_sizes() -> None:
    assert buyers(1.0, 1.0, 1.0, 1.0, capacity=3.0).share == 0.75
    assert buyers(1.0, 1.0, capacity=2.0, slots=[2.0, 1.0]).share == 1.0
    assert buyers(1.0, capacity=8.0).share == 1.0
    assert buyers(1.0, 1.0, capacity=0.0).share == 0.5, "as with one slot"
    assert buyers().share == 1.0


def test_the_fair_finish_by_hand() -> None:
    """(100 + 300) s at half of the time are 800 s."""
    assert finish_target_s(np.array([100.0, 0.0]), np.array([300.0, 50.0]), 0.5).tolist() == [800.0, 100.0]


def test_the_estimated_unfairness_by_hand() -> None:
    """(600 + 100 / 0.5) / 400 = 2."""
    who = buyers(100.0, 50.0, age_s=[600.0, 0.0], target_s=[400.0, 100.0])
    assert unfairness(who).tolist() == [2.0, 1.0]


def test_the_estimated_unfairness_is_bounded() -> None:
    who = buyers(1e9, 0.0, np.inf, age_s=[0.0, 0.0, 0.0], target_s=[1.0, 1.0, 0.0])
    assert unfairness(who).tolist() == [1e3, 1e-3, 1e-3]


def test_two_equal_jobs_share_the_window() -> None:
    assert rounds(buyers(1000.0, 1000.0)) == [2, 2]


def test_a_round_goes_where_the_logarithm_grows_most() -> None:
    """By hand: of 200 s and 2,000 s, a round of 100 s is half or a twentieth of the work.

    The first step of the long job, 1/20 of (log 0.2 - log 1e-6) / 0.2, gains 3.05, as do its next three. The
    short job's first round gains 12.2 + 1.0, its second 0.8.
    """
    assert rounds(buyers(200.0, 2000.0)) == [1, 3]
    assert rounds(buyers(200.0, 2000.0), rounds=6) == [2, 4]


def test_a_job_gets_no_round_after_its_end() -> None:
    assert rounds(buyers(150.0)) == [2]
    assert rounds(buyers(150.0, 90.0, 400.0, capacity=9.0)) == [2, 1, 4]
    assert rounds(buyers(0.0)) == [0]


def test_a_round_is_divided_by_its_slots() -> None:
    """A round of the first job gains as much but takes three of the slots."""
    assert rounds(buyers(400.0, 400.0, capacity=3.0, slots=[3.0, 1.0]), rounds=2) == [1, 2]
    assert rounds(buyers(400.0, 400.0, capacity=2.0, slots=[2.0, 1.0]), rounds=2) == [1, 2]
    assert rounds(buyers(400.0, 400.0, capacity=2.0, slots=[2.0, 1.0]), rounds=1) == [0, 1]


def test_weights_multiply_the_logarithms() -> None:
    """The first two rounds gain 6.1 each, times the weight, the next two 0.35 each."""
    assert rounds(buyers(1000.0, 1000.0, weight=[8.0, 1.0])) == [2, 2]
    assert rounds(buyers(1000.0, 1000.0, weight=[20.0, 1.0])) == [4, 0]


def test_a_job_that_never_runs_buys_nothing() -> None:
    assert rounds(buyers(np.inf, 1000.0)) == [0, 4]
    assert rounds(buyers(1000.0, 1000.0, capacity=2.0, slots=[3.0, 1.0])) == [0, 4]
    plan = plan_window(buyers(np.inf, 1000.0, age_s=[0.0, 0.0], target_s=[0.0, 1e9]), RULES)
    assert plan.fair


def test_the_makespan_counts_the_longest_remaining_time() -> None:
    """Without the term the short job gets a round first; with 0.1 a second the long one keeps all."""
    who = buyers(200.0, 2000.0)
    assert rounds(who, makespan_weight=1e-5) == [1, 3]
    assert rounds(who, makespan_weight=0.1) == [0, 4]


@pytest.mark.parametrize(
    ("age_s", "target_s", "expected"),
    [
        (0.0, 1e9, [2, 2]),
        # After the window 1000 - 100 r seconds at half of the time must end at 2,000 s: r >= 2.
        (0.0, 2000.0, [2, 2]),
        # At 1,800 s: 1000 - 100 r <= 0.5 * 1,400, so r >= 3.
        (0.0, 1800.0, [3, 1]),
        (0.0, 1600.0, [4, 0]),
        (200.0, 1800.0, [4, 0]),
    ],
)
def test_a_target_asks_for_rounds(age_s: float, target_s: float, expected: list[int]) -> None:
    who = buyers(1000.0, 1000.0, age_s=[age_s, 0.0], target_s=[target_s, 1e9])
    plan = plan_window(who, RULES)
    assert (plan.rounds.tolist(), plan.fair) == (expected, True)
    assert plan.priority.tolist() == expected


def test_max_rho_stretches_the_targets() -> None:
    who = buyers(1000.0, 1000.0, target_s=[1600.0, 1e9])
    assert rounds(who, max_rho=1.0) == [4, 0]
    assert rounds(who, max_rho=1.125) == [3, 1]


def test_a_target_within_the_window_asks_for_all_usable_rounds() -> None:
    plan = plan_window(buyers(200.0, 1000.0, target_s=[300.0, 1e9]), RULES)
    assert (plan.rounds.tolist(), plan.fair) == ([2, 2], True)


def test_targets_that_cannot_be_kept_become_weights() -> None:
    """Both are late; rho is (900 + 2,000) / 1,000 and (100 + 2,000) / 1,000, its square 8.41 and 4.41."""
    who = buyers(1000.0, 1000.0, age_s=[900.0, 100.0], target_s=[1000.0, 1000.0])
    plan = plan_window(who, RULES)
    assert not plan.fair
    assert plan.priority.tolist() == pytest.approx([2.9, 2.1])
    weighted = replace(who, weight=np.array([8.41, 4.41]), target_s=np.full(2, 1e9))
    assert plan.rounds.tolist() == rounds(weighted) == [2, 2]
    assert rounds(who, unfairness_power=12.0) == [4, 0]
    assert rounds(who, unfairness_power=0.0) == [2, 2]


def test_a_single_job_beyond_its_target_is_unfair_too() -> None:
    plan = plan_window(buyers(1000.0, age_s=[2000.0], target_s=[500.0]), RULES)
    assert (plan.rounds.tolist(), plan.fair) == ([4], False)


def test_targets_that_one_slot_cannot_keep_together() -> None:
    plan = plan_window(buyers(1000.0, 1000.0, target_s=[1800.0, 1800.0]), RULES)
    assert not plan.fair
    assert plan_window(buyers(1000.0, 1000.0, capacity=2.0, target_s=[1400.0, 1400.0]), RULES).fair


def objective(who: Buyers, chosen: np.ndarray, weight: float, rounds: int = RULES.rounds) -> float:
    left_s = np.maximum(who.remaining_s - 100.0 * chosen, 0.0)
    whole_s = who.elapsed_s + who.remaining_s
    logs = who.weight * log_progress(1.0 - left_s / whole_s)
    return float(logs.sum()) / (len(chosen) * rounds) - weight * float(left_s.max())


def best_of_all(who: Buyers, weight: float) -> float:
    """Return the best objective over all numbers of rounds within the slots of the window."""
    every = (np.array(one) for one in product(range(RULES.rounds + 1), repeat=len(who.slots)))
    return max(objective(who, one, weight) for one in every if who.slots @ one <= who.capacity * RULES.rounds)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("weight", [0.0, 1e-4, 1e-2])
def test_unit_slots_give_the_best_of_all_plans(seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 5))
    who = buyers(
        *rng.uniform(10, 2000, jobs),
        capacity=float(rng.integers(1, jobs + 1)),
        elapsed_s=rng.uniform(0, 500, jobs),
        weight=rng.choice([0.5, 1.0, 2.0], jobs),
    )
    plan = plan_window(who, replace(RULES, makespan_weight=weight))
    best = best_of_all(who, weight)
    # The logarithm is linear in parts, so its slope may fall within a round: a round then has a mean slope.
    assert objective(who, plan.rounds, weight) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("seed", range(25))
def test_jobs_of_several_slots_are_within_one_job_of_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    who = buyers(
        *rng.uniform(100, 2000, 4),
        capacity=4.0,
        slots=rng.integers(1, 4, 4),
        elapsed_s=rng.uniform(0, 500, 4),
    )
    chosen = plan_window(who, RULES).rounds
    assert who.slots @ chosen <= 4.0 * RULES.rounds
    one_job = 13.82 / (4 * RULES.rounds)
    assert best_of_all(who, 0.0) - one_job <= objective(who, chosen, 0.0) <= best_of_all(who, 0.0) + 1e-9


def test_many_different_lengths_are_searched_in_passes() -> None:
    """100 jobs have more values of the longest remaining time than one pass tries."""
    rng = np.random.default_rng(0)
    who = buyers(*rng.uniform(1000, 90_000, 100), capacity=10.0)
    rules = replace(RULES, rounds=20, makespan_weight=1.0)
    found = plan_window(who, rules).rounds
    left_s = (who.remaining_s - 100.0 * found).max()
    # With such a weight the longest remaining time decides alone: level the longest jobs.
    least = next(
        level
        for level in np.arange(70_000.0, 90_001.0, 50.0)
        if np.ceil(np.maximum(who.remaining_s - level, 0.0) / 100.0).clip(0, 21).sum() <= 200
        and (who.remaining_s - level).max() <= 2000.0
    )
    assert left_s <= least + 50.0
    assert found.sum() == 200


def test_each_weight_of_the_makespan_has_its_own_best_plan_among_many_jobs() -> None:
    rng = np.random.default_rng(2)
    who = buyers(*rng.uniform(500, 9000, 150), capacity=40.0)
    weights = [0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3]
    plans = [plan_window(who, replace(RULES, rounds=10, makespan_weight=weight)).rounds for weight in weights]
    longest_s = [float((who.remaining_s - 100.0 * plan).max()) for plan in plans]
    assert longest_s == sorted(longest_s, reverse=True)
    assert len(set(longest_s)) > 3
    for weight, own in zip(weights, plans, strict=True):
        worth = [objective(who, plan, weight, rounds=10) for plan in plans]
        assert objective(who, own, weight, rounds=10) >= max(worth) - 1e-9


def test_no_jobs_have_no_plan() -> None:
    plan = plan_window(buyers(), RULES)
    assert (plan.rounds.tolist(), plan.fair) == ([], True)
