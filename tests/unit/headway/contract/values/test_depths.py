"""Levels of depth, and the time of a step with them, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.depths import cost, level_depths, mean_depth, step_cost


@pytest.mark.parametrize(
    ("min_depth", "ranks", "depths"),
    [
        (0.5, 1, (1.0,)),
        (0.5, 2, (0.5, 1.0)),
        (0.5, 3, (0.5, 0.75, 1.0)),
        (0.25, 4, (0.25, 0.5, 0.75, 1.0)),
    ],
)
def test_levels_are_evenly_spaced(min_depth: float, ranks: int, depths: tuple[float, ...]) -> None:
    assert level_depths(min_depth, ranks) == pytest.approx(depths)


@pytest.mark.parametrize(("depth", "expected"), [(1.0, 1.0), (0.5, 2 / 3), (0.25, 0.5), (0.0, 1 / 3)])
def test_two_thirds_of_a_sample_shrink_with_the_depth(depth: float, expected: float) -> None:
    assert cost(depth) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("min_depth", "ranks", "expected"),
    [
        (0.5, 1, 1.0),
        (0.5, 2, 0.8),  # costs 2/3 and 1: shares 3/5 and 2/5 of the samples, and 2 * 2/5 of the time
        (0.25, 2, 2 / 3),  # costs 1/2 and 1
        (0.25, 4, 4 / (2 + 3 / 2 + 6 / 5 + 1)),
    ],
)
def test_the_time_of_a_step_by_hand(min_depth: float, ranks: int, expected: float) -> None:
    assert step_cost(min_depth, ranks) == pytest.approx(expected)


@given(min_depth=st.floats(0.01, 0.99), ranks=st.integers(1, 64))
def test_a_step_takes_at_least_the_cost_of_its_smallest_depth(min_depth: float, ranks: int) -> None:
    assert cost(min_depth) <= step_cost(min_depth, ranks) <= 1.0 + 1e-12
    depths = level_depths(min_depth, ranks)
    assert mean_depth(min_depth, ranks) == pytest.approx(sum(depths) / ranks)
    assert depths[-1] == pytest.approx(1.0)
