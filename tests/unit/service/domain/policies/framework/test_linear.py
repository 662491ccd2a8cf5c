"""Tests of shares of time that are fair in the max-min sense: closed forms, by hand, and the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.linear import max_min_shares

POSITIVE = st.floats(0.1, 10.0)


def shares(value: list[list[float]], slots: list[list[int]], capacity: list[float]) -> np.ndarray:
    return max_min_shares(np.array(value), np.array(slots), np.array(capacity))


@settings(max_examples=25)
@given(st.lists(st.tuples(POSITIVE, st.integers(1, 4)), min_size=1, max_size=8), st.integers(4, 12))
def test_on_one_kind_the_shares_are_those_of_the_closed_form(
    jobs: list[tuple[float, int]], capacity: int
) -> None:
    """Either the slots are the limit, shares being t / value, or the job of least value has all the time."""
    value = np.array([[one] for one, _ in jobs])
    slots = np.array([[size] for _, size in jobs])
    found = max_min_shares(value, slots, np.array([float(capacity)]))
    best = min(value.min(), capacity / (slots / value).sum())
    assert (value * found).min() == pytest.approx(best, rel=1e-5)
    assert (slots * found).sum() <= capacity * (1 + 1e-6)
    assert (found <= 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_on_two_kinds_no_grid_of_shares_does_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, slots = rng.uniform(0.2, 5, (2, 2)), rng.integers(1, 3, (2, 2))
    capacity = np.array([2.0, 2.0])
    found = max_min_shares(value, slots, capacity)
    step = np.linspace(0, 1, 21)
    one = np.array([(x, y) for x in step for y in step if x + y <= 1 + 1e-9])
    gains = one @ value.T
    first, second = (index.ravel() for index in np.indices((len(one), len(one))))
    used = one[first] * slots[0] + one[second] * slots[1]
    feasible = (used <= capacity + 1e-9).all(axis=1)
    grid = np.minimum(gains[first, 0], gains[second, 1])[feasible].max()
    best = (value * found).sum(axis=1).min()
    assert grid - 1e-6 <= best <= grid + 2 * value.max() * 0.05
    assert (found.sum(axis=1) <= 1 + 1e-6).all()
    assert ((slots * found).sum(axis=0) <= capacity + 1e-6).all()


@pytest.mark.parametrize(
    ("value", "slots", "capacity", "least"),
    [
        pytest.param([[2.0]], [[1]], [1.0], 2.0, id="alone"),
        pytest.param([[1.0], [1.0]], [[1], [1]], [1.0], 0.5, id="two on one slot"),
        pytest.param([[1.0], [3.0]], [[1], [1]], [1.0], 0.75, id="shares of 3/4 and 1/4"),
        pytest.param([[1.0], [1.0]], [[1], [3]], [3.0], 0.75, id="demand of one and of three"),
        pytest.param([[1.0, 4.0], [1.0, 0.0]], [[1, 1], [1, 1]], [1.0, 1.0], 1.0, id="only one kind fits"),
        pytest.param([[4.0, 4.0]], [[1, 1]], [1.0, 1.0], 4.0, id="one job has at most all of its time"),
        pytest.param([[1e9], [3e9]], [[1], [1]], [1.0], 0.75e9, id="large values are scaled"),
    ],
)
def test_the_least_value_by_hand(
    value: list[list[float]], slots: list[list[int]], capacity: list[float], least: float
) -> None:
    found = shares(value, slots, capacity)
    assert (np.array(value) * found).sum(axis=1).min() == pytest.approx(least)


@pytest.mark.parametrize(
    ("value", "slots", "capacity", "has_share"),
    [
        pytest.param([[0.0], [1.0]], [[1], [1]], [1.0], [False, True], id="no value"),
        pytest.param([[1.0], [1.0]], [[4], [1]], [2.0], [False, True], id="larger than the kind"),
        pytest.param([[1.0], [1.0]], [[2], [1]], [2.0], [True, True], id="as large as the kind"),
        pytest.param([[0.0], [0.0]], [[1], [1]], [1.0], [False, False], id="nobody has value"),
        pytest.param([[1.0]], [[1]], [0.0], [False], id="no capacity"),
    ],
)
def test_a_job_that_cannot_run_has_no_share_and_limits_nobody(
    value: list[list[float]], slots: list[list[int]], capacity: list[float], has_share: list[bool]
) -> None:
    assert (shares(value, slots, capacity) > 1e-9).any(axis=1).tolist() == has_share


def test_no_jobs_and_no_kinds() -> None:
    assert max_min_shares(np.zeros((0, 2)), np.zeros((0, 2)), np.ones(2)).shape == (0, 2)
    assert max_min_shares(np.zeros((2, 0)), np.zeros((2, 0)), np.ones(0)).shape == (2, 0)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_shares_are_feasible_and_more_capacity_is_never_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, slots = rng.uniform(0.1, 5, (4, 2)), rng.integers(1, 4, (4, 2))
    capacity = rng.integers(3, 6, 2).astype(float)
    small, large = max_min_shares(value, slots, capacity), max_min_shares(value, slots, 2 * capacity)
    for found, limit in ((small, capacity), (large, 2 * capacity)):
        assert (found >= 0).all()
        assert (found.sum(axis=1) <= 1 + 1e-6).all()
        assert ((slots * found).sum(axis=0) <= limit + 1e-6).all()
    assert (value * small).sum(axis=1).min() <= (value * large).sum(axis=1).min() + 1e-6
