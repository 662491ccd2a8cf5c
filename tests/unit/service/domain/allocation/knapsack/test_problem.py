"""Rows count the demand of their own jobs, and a solution states how far it may be from the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import NOTHING, Row, Solution

N = NOTHING
SIZES = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("jobs", "chosen", "taken"),
    [
        (None, [], 0.0),
        (None, [N, N, N], 0.0),
        (None, [0, 1, 2], 7.0),
        (None, [2, N, 2], 8.0),
        ([True, False, False], [0, 1, 2], 1.0),
        ([True, False, True], [N, 1, 2], 4.0),
        ([False, False, False], [0, 1, 2], 0.0),
    ],
)
def test_a_row_counts_the_choices_of_its_jobs(
    jobs: list[bool] | None, chosen: list[int], taken: float
) -> None:
    row = Row(name="slots", capacity=9.0, demand=SIZES, jobs=None if jobs is None else np.array(jobs))
    assert row.taken(np.array(chosen, dtype=np.int64)) == taken


def test_counting_leaves_the_members_of_a_row_as_they_are() -> None:
    members = np.array([True, True, False])
    row = Row(name="quota", capacity=9.0, demand=SIZES, jobs=members)
    assert row.taken(np.array([N, 1, 2])) == 2.0
    assert members.tolist() == [True, True, False]


def solution(objective: float, bound: float) -> Solution:
    return Solution(
        chosen=np.zeros(0, np.int64), objective=objective, bound=bound, prices=np.zeros(0), status="limit"
    )


@pytest.mark.parametrize(
    ("objective", "bound", "gap"),
    [
        (9.0, 10.0, 0.1),
        (10.0, 10.0, 0.0),
        (10.0 + 1e-12, 10.0, 0.0),
        (-12.0, -10.0, 0.2),
        (0.0, 0.0, 0.0),
        (-1.0, 1.0, 2.0),
    ],
)
def test_the_gap_is_relative_to_the_bound(objective: float, bound: float, gap: float) -> None:
    assert solution(objective, bound).gap == pytest.approx(gap)


def test_a_gap_to_a_bound_of_zero_is_finite() -> None:
    assert math.isfinite(solution(-1.0, 0.0).gap)
    assert solution(-1.0, 0.0).gap > 1e9
