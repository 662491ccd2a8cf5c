"""Tests of the front of time and cost against a direct search, and of the knee."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.searches.frontier import Objective, choose, knee, pareto_front

values = st.one_of(
    st.integers(0, 6).map(float),
    st.floats(0, 1e308),
    st.sampled_from([math.inf, math.nan, -1.0, 0.0, 5e-324]),
)
points = st.lists(st.tuples(values, values), max_size=12)


def split(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([time for time, _ in pairs]), np.array([cost for _, cost in pairs])


def direct(pairs: list[tuple[float, float]]) -> list[int]:
    real = [
        (time, cost, index)
        for index, (time, cost) in enumerate(pairs)
        if math.isfinite(time) and math.isfinite(cost) and min(time, cost) >= 0
    ]
    front = [
        one
        for one in real
        if not any(
            other[0] <= one[0] and other[1] <= one[1] and (other[:2] != one[:2] or other[2] < one[2])
            for other in real
        )
    ]
    return [index for _, _, index in sorted(front)]


@settings(max_examples=40)
@given(points)
def test_the_front_of_any_points_is_the_direct_search(pairs: list[tuple[float, float]]) -> None:
    assert pareto_front(*split(pairs)).tolist() == direct(pairs)


@settings(max_examples=25)
@given(points)
def test_the_knee_lies_on_the_front(pairs: list[tuple[float, float]]) -> None:
    chosen = knee(*split(pairs))
    front = direct(pairs)
    assert chosen in front if front else chosen is None


@pytest.mark.parametrize(
    ("time_s", "cost", "expected"),
    [
        ([10.0, 2.0, 1.0], [1.0, 1.2, 5.0], 1),  # the corner
        ([7.0], [3.0], 0),
        ([10.0, 5.0], [1.0, 1.5], 1),  # two points: half the time for half as much again
        ([10.0, 9.0], [1.0, 1.5], 0),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], 0),  # a straight line: 3, 4, 3; ties go to the faster
        ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 0),  # free: the fastest is all of the front
        ([4.0, 4.0, 4.0], [2.0, 1.0, 1.0], 1),  # equal points: the first
        ([math.nan, 3.0, math.inf], [1.0, 3.0, 0.0], 1),
    ],
)
def test_the_knee_of_points_by_hand_is_their_corner(
    time_s: list[float], cost: list[float], expected: int
) -> None:
    assert knee(np.array(time_s), np.array(cost)) == expected


@settings(max_examples=50)
@given(st.floats(0.001, 1000), st.floats(0.001, 1000))
def test_the_knee_has_no_unit(time_factor: float, cost_factor: float) -> None:
    slots = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    time_s = 0.05 + 0.95 / slots
    chosen = knee(time_s * time_factor, slots * time_s * cost_factor)
    assert chosen == knee(time_s, slots * time_s)
    assert slots[chosen] == 8.0


@pytest.mark.parametrize(
    ("time_s", "cost", "expected"),
    [
        ([], [], []),
        ([1.0], [1.0], [0]),
        ([1.0, 2.0], [1.0, 2.0], [0]),  # beaten in both
        ([2.0, 1.0], [1.0, 2.0], [1, 0]),  # from the fastest to the cheapest
        ([1.0, 1.0], [2.0, 1.0], [1]),  # equally fast
        ([1.0, 2.0], [1.0, 1.0], [0]),  # equally cheap
        ([1.0, 1.0], [1.0, 1.0], [0]),  # the first of equal points
        ([math.inf, 2.0], [0.0, 1.0], [1]),
        ([2.0, 1.0], [1.0, math.inf], [0]),
        ([math.nan, 2.0, -1.0], [0.0, 1.0, 0.0], [1]),
        ([0.0, 2.0], [5.0, 0.0], [0, 1]),
        ([3.0, 2.0, 1.0, 2.5], [1.0, 2.0, 3.0, 2.5], [2, 1, 0]),
    ],
)
def test_the_front_by_hand(time_s: list[float], cost: list[float], expected: list[int]) -> None:
    assert pareto_front(np.array(time_s), np.array(cost)).tolist() == expected


def test_a_point_far_below_the_chord_is_the_knee_whatever_the_products() -> None:
    """The cheapest point has the smallest product, but it lies on the chord."""
    assert knee(np.array([1.0, 2.0, 10.0]), np.array([10.0, 2.0, 0.1])) == 1


def test_a_concave_front_is_decided_by_the_product() -> None:
    assert knee(np.array([1.0, 9.0, 10.0]), np.array([10.0, 9.0, 1.0])) == 0
    assert knee(np.array([2.0, 9.0, 10.0]), np.array([10.0, 9.0, 1.0])) == 2


def test_distances_that_differ_by_rounding_are_equal() -> None:
    """Two points are equally far below the chord but for 1e-10; the smaller product decides."""
    time_s, cost = np.array([0.0, 1.0, 4.0, 10.0]) + 1.0, np.array([10.0, 4.0, 1.0 - 1e-9, 0.0]) + 0.1
    assert knee(time_s, cost) == 2


@pytest.mark.parametrize(
    ("objective", "expected"),
    # Points: (100 s, $1), (90 s, $1), (20 s, $1.3), (20 s, $1.2), (18 s, $9), one that is impossible.
    [("time", 4), ("cost", 1), ("balanced", 3)],
)
def test_choice_by_objective_is_one_point_of_the_front(objective: Objective, expected: int) -> None:
    time_s = np.array([100.0, 90.0, 20.0, 20.0, 18.0, math.inf])
    cost_usd = np.array([1.0, 1.0, 1.3, 1.2, 9.0, 0.1])
    assert choose(time_s, cost_usd, objective) == expected
    assert choose(time_s, np.full(6, math.inf), objective) is None
