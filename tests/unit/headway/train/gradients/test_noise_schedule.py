"""Tests of the interval between noise measurements: by hand, its bounds, and what ranks agree on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.gradients.noise import Measurement, NoiseScale
from headway.train.gradients.noise_schedule import (
    FIRST_MEASUREMENTS,
    LEAST_STEPS,
    MOST_COST,
    MOST_COST_AT_FIRST,
    MOST_STEPS,
    USEFUL_ERROR,
    NoiseSchedule,
    interval,
)


@pytest.mark.parametrize(
    ("cost", "error", "remembered", "expected"),
    [
        # An error of 10 leaves no precision to give away: the cost decides.
        (0.0, 10.0, 2000.0, 8),
        (0.08, 10.0, 2000.0, 8),
        (0.081, 10.0, 2000.0, 16),
        (0.39, 10.0, 2000.0, 64),
        (0.64, 10.0, 2000.0, 64),
        (0.65, 10.0, 2000.0, 128),
        (0.65, 10.0, 1919.0, 64),  # 128 would leave fewer than 15 measurements
        (50.0, 10.0, 1e9, 128),
        # 2 * 0.1 / sqrt(2000 / k) = 0.025 at k = 31.25.
        (0.0, 0.1, 2000.0, 16),
        (0.0, 0.0988, 2000.0, 32),
        (0.39, 0.1, 2000.0, 64),
        (0.0, 0.0, 1e9, 128),
        (0.0, math.inf, 1e9, 8),
        # Batches of 16 times the reference: 125 steps are remembered.
        (0.24, 10.0, 125.0, 8),
        (0.24, 10.0, 239.0, 8),
        (0.24, 10.0, 240.0, 16),
        (0.24, 10.0, 0.1, 8),
        (0.25, 10.0, 125.0, 16),
        # Two thirds of a step, as a second backward pass: never more than 3 % of the time.
        (0.67, 10.0, 125.0, 32),
        (0.67, 10.0, 2000.0, 128),
        (50.0, 10.0, 0.1, 128),
    ],
)
def test_intervals_by_hand(cost: float, error: float, remembered: float, expected: int) -> None:
    assert interval(cost=cost, error=error, remembered=remembered) == expected


@given(
    cost=st.floats(0.0, 1e3),
    error=st.floats(0.0, 1e3),
    remembered=st.floats(1e-3, 1e9),
)
def test_an_interval_is_affordable_useful_or_at_its_bound(
    cost: float, error: float, remembered: float
) -> None:
    every = interval(cost=cost, error=error, remembered=remembered)
    assert every in (8, 16, 32, 64, 128)
    assert every == LEAST_STEPS or remembered / every >= 15 or 2 * cost / every > MOST_COST_AT_FIRST
    assert every == MOST_STEPS or cost / every <= MOST_COST_AT_FIRST
    bound = 2 * every > MOST_STEPS or remembered / (2 * every) < 15
    assert bound or cost / every <= MOST_COST
    half_width = 2 * error * math.sqrt(every / remembered)
    needed = every == LEAST_STEPS or 2 * cost / every > MOST_COST
    assert needed or half_width <= USEFUL_ERROR * (1 + 1e-9)


def measured(number: int, spread: float = 0.0, reference: int = 64) -> NoiseScale:
    noise = NoiseScale(reference)
    for one in range(number):
        noise.add(Measurement(1.0 + spread * (-1) ** one, 64.0), 64)
    return noise


@pytest.mark.parametrize(("cost", "every"), [(0.2, 8), (0.67, 32), (5.0, 128)])
def test_the_first_measurements_are_as_dense_as_three_percent_allow(cost: float, every: int) -> None:
    schedule = NoiseSchedule()
    schedule.add_cost(cost)
    schedule.propose(NoiseScale(64), 64)
    assert schedule.wanted == LEAST_STEPS
    schedule.propose(measured(FIRST_MEASUREMENTS - 1), 64)
    assert schedule.wanted == every
    schedule.propose(measured(FIRST_MEASUREMENTS), 64)
    assert schedule.wanted == 128
    assert schedule.every == LEAST_STEPS, "until the ranks agree"
    # An unbiased measurement that replaces biased ones begins anew.
    schedule.propose(measured(1), 64)
    assert schedule.wanted == every


def test_without_a_known_cost_measurements_stay_dense() -> None:
    schedule = NoiseSchedule()
    for bad in (0.0, -1.0, math.nan, math.inf):
        schedule.add_cost(bad)
    schedule.propose(measured(50), 64)
    assert schedule.wanted == LEAST_STEPS


def test_the_median_of_five_costs_counts() -> None:
    schedule, noise = NoiseSchedule(), measured(50, spread=50.0)
    for cost in (9.0, 9.0, 9.0):
        schedule.add_cost(cost)
    schedule.propose(noise, 64)
    assert schedule.wanted == 128
    for cost in (0.1, 0.1, 9.0, 0.1):
        schedule.add_cost(cost)
    schedule.propose(noise, 64)
    assert schedule.wanted == 16


def test_a_precise_estimate_needs_few_measurements() -> None:
    schedule = NoiseSchedule()
    schedule.add_cost(0.01)
    schedule.propose(measured(50, spread=0.01), 64)
    assert schedule.wanted == 128
    schedule.propose(measured(50, spread=50.0), 64)
    assert schedule.wanted == LEAST_STEPS


@pytest.mark.parametrize(
    ("proposals", "every"), [([8, 64], 64), ([16, 8], 16), ([0, 16], 16), ([0, 0], 32), ([], 32)]
)
def test_ranks_agree_on_the_largest_proposal(proposals: list[int], every: int) -> None:
    schedule = NoiseSchedule()
    schedule.agree([32])
    schedule.agree(proposals)
    assert schedule.every == every
