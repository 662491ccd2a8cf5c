"""Tests of the budget policy: the published width, the worth of a dollar, and the controller of mu."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import Problem, Row, Solution
from service.domain.policies.budget import (
    BudgetPolicy,
    BudgetState,
    highest_mu,
    mu_for_present_jobs,
    price_of_everything,
    steer,
)
from service.domain.policies.framework.widths import fixed_widths
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round

PLENTY = 10_000


@drawn(st.integers(0, 10_000), st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_with_room_every_job_has_the_published_width(seed: int, mu: float) -> None:
    round_ = random_round(seed, capacity=PLENTY, kinds=2, sizes=2, weight=np.ones(4), current=np.full(4, -1))
    choices = BudgetPolicy(mu_h_per_usd=mu).choose(round_, brute_force)
    prices = round_.configurations.usd_per_h
    cost = np.where(round_.goodput > 0, 1 + mu * prices, np.inf) / np.where(
        round_.goodput > 0, round_.goodput, 1.0
    )
    for job, column in enumerate(choices.chosen):
        if (round_.goodput[job] > 0).any():
            assert cost[job, column] == pytest.approx(cost[job].min())
        else:
            assert column == -1


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_stream_spends_and_waits_as_the_linear_program_says(seed: int) -> None:
    """Jobs of many classes, present in the numbers that the widths imply, at the mu of the program."""
    rng = np.random.default_rng(seed)
    slots = np.array([1, 2, 4, 8])
    rate = slots ** rng.uniform(0.4, 0.95, (3, 1)) * rng.uniform(0.8, 1.2, (3, 4))
    load = rng.uniform(5, 50, 3)
    least = fixed_widths(load, rate, slots * 1.0, budget_usd_per_h=0.0).usd_per_h
    exact = fixed_widths(load, rate, slots * 1.0, budget_usd_per_h=1.3 * least)
    policy = BudgetPolicy(
        mu_h_per_usd=exact.mu_h_per_usd, mixed_class=exact.mixed_class, narrow_share=exact.narrow_share
    )
    present = np.rint(1000 * (exact.share * load[:, None] / rate).sum(axis=1)).astype(int)
    job_class = np.repeat(np.arange(3), present)
    round_ = a_round(rate[job_class], slots, capacity=1e9, job_class=job_class)
    utility = policy.choose(round_, nobody_waits).utility
    usd_per_h = slots[utility.argmax(axis=1)].sum() / 1000
    assert usd_per_h == pytest.approx(exact.usd_per_h, rel=1e-3)
    done = rate[job_class, utility.argmax(axis=1)]
    assert [done[job_class == one].sum() / 1000 for one in range(3)] == pytest.approx(load.tolist(), rel=1e-3)


def nobody_waits(problem: Problem) -> Solution:
    """The shared solver where nothing binds."""
    best = float(problem.utility.max(axis=1).sum())
    return Solution(
        chosen=problem.utility.argmax(axis=1),
        objective=best,
        bound=best,
        prices=np.zeros(len(problem.rows)),
        status="optimal",
    )


@pytest.mark.parametrize("seed", range(20))
def test_capacity_and_a_cap_on_dollars_hold_and_nobody_waits_who_has_room(seed: int) -> None:
    cap = Row(name="usd_per_h", capacity=7.0, demand=np.array([1.0, 2, 3, 4]))
    round_ = random_round(seed, capacity=6, rows=[cap], current=np.full(4, -1))
    choices = BudgetPolicy(mu_h_per_usd=100.0).choose(round_, brute_force)
    assert is_feasible(round_.rows, choices.chosen[None]).all()
    slots = round_.configurations.slots
    free = 6 - np.append(slots, 0)[choices.chosen].sum()
    waits = (choices.chosen < 0) & (round_.goodput > 0).any(axis=1)
    assert not (waits & (slots[choices.utility.argmax(axis=1)] <= free)).any()


def test_a_job_whose_best_size_is_larger_than_the_cluster_runs_all_the_same() -> None:
    round_ = a_round([[1.0, 2.0, 80.0]], [1, 2, 8], capacity=2)
    assert BudgetPolicy(mu_h_per_usd=1.0).choose(round_, brute_force).chosen[0] >= 0


def test_dollars_decide_between_kinds() -> None:
    round_ = a_round([[10.0, 18.0]], [1, 1], kind=[0, 1], capacity=4, usd_per_h=[1.0, 4.0])
    assert BudgetPolicy(mu_h_per_usd=0.0).choose(round_, brute_force).chosen.tolist() == [1]
    assert BudgetPolicy(mu_h_per_usd=2.0).choose(round_, brute_force).chosen.tolist() == [0]


def test_a_weight_is_what_an_hour_of_delay_counts() -> None:
    round_ = a_round(
        [[10.0, 15.0]] * 2, [1, 2], capacity=PLENTY, usd_per_h=[1.0, 2.0], weight=np.array([1.0, 9.0])
    )
    assert BudgetPolicy(mu_h_per_usd=2.0).choose(round_, brute_force).chosen.tolist() == [0, 1]


@pytest.mark.parametrize(("remaining", "column"), [(100.0, 0), (1e6, 1)])
def test_a_change_must_pay_before_the_job_ends(remaining: float, column: int) -> None:
    round_ = a_round(
        [[10.0, 19.0]],
        [1, 2],
        capacity=2,
        current=np.array([0]),
        change_s=np.array([30.0]),
        remaining=np.array([remaining]),
    )
    assert BudgetPolicy(mu_h_per_usd=0.01).choose(round_, brute_force).chosen.tolist() == [column]


def test_of_equal_jobs_the_running_one_goes_on() -> None:
    round_ = a_round([[10.0]] * 2, [1], capacity=1, current=np.array([-1, 0]), change_s=np.full(2, 30.0))
    assert BudgetPolicy(mu_h_per_usd=0.1).choose(round_, brute_force).chosen.tolist() == [-1, 0]


def test_without_a_mu_the_present_jobs_share_the_budget() -> None:
    round_ = a_round(np.tile(np.arange(1, 9) ** 0.5, (4, 1)), range(1, 9), capacity=PLENTY)
    for budget in (4, 8, 16, 32):
        chosen = BudgetPolicy(usd_per_h=float(budget)).choose(round_, nobody_waits).chosen
        assert round_.configurations.slots[chosen].sum() == budget
    assert mu_for_present_jobs(round_, 32.0) == 0.0
    assert mu_for_present_jobs(round_, 3.0) == highest_mu(round_.configurations.slots * 1.0)


def test_without_a_budget_it_is_what_all_slots_cost() -> None:
    jobs = np.tile(np.array([1, 2, 4, 8]) ** 0.5, (4, 1))
    owned = a_round(jobs, [1, 2, 4, 8], capacity=8)
    assert price_of_everything(owned) == 8.0
    assert mu_for_present_jobs(owned, -1.0) == mu_for_present_jobs(owned, 8.0)
    assert owned.configurations.slots[BudgetPolicy().choose(owned, brute_force).chosen].sum() == 8
    rented = a_round(jobs, [1, 2, 1, 2], kind=[0, 0, 1, 1], capacity=[6, 2], usd_per_h=[1.0, 1.8, 3.0, 6.0])
    assert price_of_everything(rented) == pytest.approx(6 * 0.9 + 2 * 3.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0])
def test_every_input_has_an_answer(bad: float) -> None:
    odd = a_round(
        [[10.0, bad], [bad, bad]],
        [1, 2],
        capacity=2,
        usd_per_h=[1.0, bad],
        weight=np.array([bad, 1.0]),
        change_s=np.array([bad, bad]),
        remaining=np.array([bad, bad]),
        current=np.array([0, 0]),
    )
    for policy in (
        BudgetPolicy(),
        BudgetPolicy(mu_h_per_usd=1.0),
        BudgetPolicy(mu_h_per_usd=0.0, usd_per_h=5.0),
    ):
        choices = policy.choose(odd, brute_force)
        assert choices.chosen.tolist() == [0, -1]
        assert not np.isnan(choices.utility).any()
        assert np.isfinite(choices.idle).all()


def test_no_jobs() -> None:
    assert (
        BudgetPolicy().choose(a_round(np.zeros((0, 1)), [1], capacity=1), brute_force).chosen.tolist() == []
    )
    assert BudgetPolicy().choose(a_round(np.zeros((2, 0)), [], capacity=1), brute_force).chosen.tolist() == [
        -1,
        -1,
    ]


def steered(hours: int, *, budget: float, expected: float, seed: int = 0) -> BudgetState:
    """A cluster under random arrivals of jobs that speed up as the root of their slots."""
    rng = np.random.default_rng(seed)
    slots = np.arange(1, 65)
    state = BudgetState()
    for _ in range(hours):
        mu = max(state.mu_h_per_usd, 0.0)
        width = slots[((1 + mu * slots) / np.sqrt(slots)).argmin()]
        work = rng.exponential(1.0, rng.poisson(20)).sum()
        state = steer(
            state,
            realised_usd=work * width / np.sqrt(width),
            elapsed_s=3600.0,
            budget_usd_per_h=budget,
            expected_h_per_usd=expected,
            highest_h_per_usd=highest_mu(slots * 1.0),
        )
    return state


@pytest.mark.parametrize(
    ("expected", "days", "off_by"),
    [
        (0.05, 4, 0.03),
        (0.25, 4, 0.03),
        (1.5, 4, 0.03),
        (0.005, 60, 0.005),
        (0.25, 60, 0.005),
        (10.0, 60, 0.005),
    ],
)
def test_realised_spend_steers_to_the_budget_whatever_was_expected(
    expected: float, days: int, off_by: float
) -> None:
    # The exact mu is 0.25: widths of 4 spend 2 dollars per unit of work.
    state = steered(24 * days, budget=40.0, expected=expected)
    assert state.average_usd_per_h == pytest.approx(40.0, rel=off_by)
    assert state.elapsed_s == days * 86_400.0


def test_a_budget_that_is_too_small_ends_at_the_highest_mu_and_one_too_large_at_none() -> None:
    assert steered(500, budget=10.0, expected=0.2).mu_h_per_usd == 1000.0
    assert steered(500, budget=400.0, expected=0.2).mu_h_per_usd == 0.0


def test_unspent_money_is_not_saved_up_without_limit() -> None:
    idle = BudgetState()
    for _ in range(1000):
        idle = steer(idle, realised_usd=0, elapsed_s=3600, **LIMITS)
    busy = idle
    for _ in range(5):
        busy = steer(busy, realised_usd=30.0, elapsed_s=3600, **LIMITS)
    assert idle.mu_h_per_usd == 0.0
    assert busy.mu_h_per_usd > 0.0


LIMITS = {"budget_usd_per_h": 10.0, "expected_h_per_usd": 0.2, "highest_h_per_usd": 1000.0}


@pytest.mark.parametrize(
    ("usd", "seconds"),
    [(math.nan, 1.0), (math.inf, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -5.0), (1.0, math.nan)],
)
def test_what_cannot_be_true_steers_nothing(usd: float, seconds: float) -> None:
    state = BudgetState(mu_h_per_usd=0.5, spent_usd=3.0, elapsed_s=60.0)
    assert steer(state, realised_usd=usd, elapsed_s=seconds, **LIMITS) is state


def test_a_budget_of_zero_makes_a_dollar_as_dear_as_can_be() -> None:
    state = steer(BudgetState(), realised_usd=5.0, elapsed_s=60.0, **(LIMITS | {"budget_usd_per_h": 0.0}))
    assert state.mu_h_per_usd == LIMITS["highest_h_per_usd"]


def test_one_absurd_bill_is_got_over() -> None:
    state = steer(BudgetState(), realised_usd=1e9, elapsed_s=3600.0, **LIMITS)
    assert state.mu_h_per_usd > 10 * LIMITS["expected_h_per_usd"]
    for _ in range(200):
        state = steer(state, realised_usd=5.0, elapsed_s=3600.0, **LIMITS)
    assert state.mu_h_per_usd < 1.0


def test_without_a_budget_nothing_is_corrected() -> None:
    state = steer(BudgetState(), realised_usd=5.0, elapsed_s=60.0, **(LIMITS | {"budget_usd_per_h": -1.0}))
    assert state.mu_h_per_usd == LIMITS["expected_h_per_usd"]
    assert state.spent_usd == 5.0


def test_a_state_is_kept_as_json() -> None:
    state = steer(BudgetState(), realised_usd=5.0, elapsed_s=60.0, **LIMITS)
    assert BudgetState(**json.loads(json.dumps(dataclasses.asdict(state)))) == state
    assert BudgetState().average_usd_per_h == 0.0
