"""Tests of the functions that policies share: cleaned inputs, masks of what jobs hold, and fair shares."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.framework import speedup
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import (
    at_fair_share,
    best_where,
    changed,
    clean_goodput,
    finite,
    goodput_now,
    holding,
    kept,
    kind_capacity,
    known_length,
    least_goodput,
    remaining_s,
    restart_factor,
    smallest_size,
    usable_goodput,
    weights,
)
from tests.unit.service.builders import wild_floats
from tests.unit.service.domain.policies.rounds import a_round, random_round

NAN, INF = math.nan, math.inf


def jobs_on_three_sizes(*goodput: list[float], capacity: float = 8.0, **fields: Any) -> RoundInput:
    """Jobs on 1, 2 and 4 slots of one kind."""
    return a_round(goodput, [1, 2, 4], capacity=capacity, **fields)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, 0.0),
        (2.5, 2.5),
        (1e15, 1e15),
        (1e16, 1e15),
        (-1e-300, 7.0),
        (-INF, 7.0),
        (INF, 7.0),
        (NAN, 7.0),
    ],
)
def test_finite_limits_values_and_replaces_those_that_are_not_valid(value: float, expected: float) -> None:
    assert finite(np.array([value]), otherwise=7.0).tolist() == [expected]


def test_finite_replaces_by_zero_unless_told_otherwise() -> None:
    assert finite(np.array([NAN, 1.0])).tolist() == [0.0, 1.0]


def test_finite_converts_integers_and_limits_the_replacement_too() -> None:
    assert finite(np.array([3, -1])).dtype == np.float64
    assert finite(np.array([NAN]), otherwise=INF).tolist() == [1e15]


@settings(max_examples=40)
@given(st.lists(wild_floats, max_size=6))
def test_finite_is_idempotent_and_always_finite(values: list[float]) -> None:
    once = finite(np.array(values))
    assert np.isfinite(once).all()
    assert (once >= 0).all()
    assert finite(once).tolist() == once.tolist()


@pytest.mark.parametrize("bad", [NAN, INF, -1.0, 0.0, 1e-10])
def test_a_goodput_that_is_not_valid_or_tiny_counts_as_none(bad: float) -> None:
    assert clean_goodput(jobs_on_three_sizes([bad, 1.0, 2.0])).tolist() == [[0.0, 1.0, 2.0]]


def test_usable_goodput_is_that_of_the_allowed_configurations() -> None:
    round_ = jobs_on_three_sizes([1.0, NAN, 3.0], allowed=[[False, True, True]])
    assert clean_goodput(round_).tolist() == [[1.0, 0.0, 3.0]]
    assert usable_goodput(round_).tolist() == [[0.0, 0.0, 3.0]]


@pytest.mark.parametrize(
    ("remaining", "known"), [(0.0, True), (5.0, True), (NAN, False), (INF, False), (-1.0, False)]
)
def test_a_length_is_known_if_it_is_a_number_from_zero(remaining: float, known: bool) -> None:
    assert known_length(jobs_on_three_sizes([1.0] * 3, remaining=[remaining])).tolist() == [known]


@pytest.mark.parametrize(
    ("remaining", "goodput", "served_s", "expected"),
    [
        (100.0, 4.0, 7.0, 25.0),
        (0.0, 4.0, 7.0, 0.0),
        (NAN, 4.0, 7.0, 7.0),
        (NAN, 4.0, NAN, 0.0),
        (100.0, 0.0, 7.0, INF),
        (NAN, 0.0, 7.0, INF),
    ],
)
def test_the_time_to_go_is_the_work_over_the_goodput_or_the_time_served(
    remaining: float, goodput: float, served_s: float, expected: float
) -> None:
    round_ = jobs_on_three_sizes([1.0] * 3, remaining=[remaining])
    assert remaining_s(round_, np.array([goodput]), np.array([served_s])).tolist() == [expected]


@pytest.mark.parametrize(
    ("weight", "share", "expected"),
    [
        (2.0, None, 2.0),
        (NAN, None, 1.0),
        (-1.0, None, 1.0),
        (0.0, None, 0.0),
        (2.0, 0.5, 1.0),
        (2.0, NAN, 2.0),
        (INF, 2.0, 2.0),
    ],
)
def test_a_weight_is_the_priority_times_the_share_of_the_project(
    weight: float, share: float | None, expected: float
) -> None:
    fields = {"weight": [weight]} | ({} if share is None else {"share": [share]})
    assert weights(jobs_on_three_sizes([1.0] * 3, **fields)).tolist() == [expected]


@pytest.mark.parametrize(("current", "column"), [(-1, None), (0, 0), (2, 2), (3, None), (-7, None)])
def test_masks_of_what_a_job_holds(current: int, column: int | None) -> None:
    """A job holds the column that is in the table; every other column would be a change."""
    round_ = jobs_on_three_sizes([1.0, 2.0, 4.0], current=[current])
    held = [index == column for index in range(3)]
    assert holding(round_).tolist() == [column is not None]
    assert kept(round_).tolist() == [held]
    assert changed(round_).tolist() == [[column is not None and not one for one in held]]


def test_goodput_now_is_that_of_the_held_configuration() -> None:
    three = [1.0, 2.0, 4.0]
    round_ = jobs_on_three_sizes(three, three, three, current=[-1, 0, 2])
    assert goodput_now(round_).tolist() == [0.0, 1.0, 4.0]


@pytest.mark.parametrize(
    ("life_s", "changes", "change_s", "expected"),
    [
        # max(life - changes * cost, 0) / (life + cost), by hand.
        (100.0, 0, 25.0, 100 / 125),
        (100.0, 2, 25.0, 50 / 125),
        (100.0, 4, 25.0, 0.0),
        (100.0, 9, 25.0, 0.0),
        (0.0, 0, 25.0, 0.0),
        (100.0, 9, 0.0, 1.0),
        (0.0, 0, 0.0, 1.0),
        (NAN, 0, 25.0, 0.0),
        (100.0, 2, NAN, 1.0),
        (100.0, -3, 25.0, 100 / 125),
    ],
)
def test_the_restart_factor_is_the_published_one(
    life_s: float, changes: int, change_s: float, expected: float
) -> None:
    round_ = jobs_on_three_sizes([1.0] * 3, changes=[changes])
    factor = restart_factor(round_, np.array([life_s]), np.array([change_s]))
    assert factor.tolist() == [pytest.approx(expected)]


@settings(max_examples=40)
@given(wild_floats, st.integers(-1, 9), wild_floats)
def test_the_restart_factor_is_a_fraction(life_s: float, changes: int, change_s: float) -> None:
    round_ = jobs_on_three_sizes([1.0] * 3, changes=[changes])
    assert 0.0 <= restart_factor(round_, np.array([life_s]), change_s)[0] <= 1.0


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [([3.0, 5.0], [3.0, 5.0]), ([NAN, -2.0], [0.0, 0.0]), ([INF, 1.0], [0.0, 1.0]), ([4.0], [4.0, 0.0])],
)
def test_the_capacity_of_each_kind_is_that_of_its_row(capacities: list[float], expected: list[float]) -> None:
    round_ = a_round([[1.0, 2.0]], [1, 1], kind=[0, 1], capacity=1)
    rows = tuple(
        replace(row, capacity=capacity) for row, capacity in zip(round_.rows, capacities, strict=False)
    )
    assert kind_capacity(replace(round_, rows=rows)).tolist() == expected


def test_rows_after_those_of_the_kinds_are_no_capacity_of_a_kind() -> None:
    quota = Row(name="quota", capacity=2.0, demand=np.array([1.0, 1.0]))
    assert kind_capacity(a_round([[1.0, 2.0]], [1, 2], capacity=6, rows=(quota,))).tolist() == [6.0]


def test_extremes_of_a_row_of_goodput() -> None:
    goodput, slots = np.array([[0.0, 3.0, 5.0], [0.0, 0.0, 0.0]]), np.array([1, 2, 4])
    assert best_where(goodput, slots[None] <= 2).tolist() == [3.0, 0.0]
    assert smallest_size(goodput, slots).tolist() == [2.0, INF]
    assert least_goodput(goodput).tolist() == [3.0, 1.0]


def test_extremes_of_no_columns() -> None:
    nothing = np.zeros((2, 0))
    assert best_where(nothing, nothing > 0).tolist() == [0.0, 0.0]
    assert smallest_size(nothing, np.zeros(0, dtype=np.int64)).tolist() == [INF, INF]
    assert least_goodput(nothing).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("goodput", "capacity", "expected"),
    [
        ([[1.0, 2.0, 4.0]], 8, [4.0]),  # eight slots for one job
        ([[1.0, 2.0, 4.0]] * 2, 4, [2.0] * 2),
        ([[1.0, 2.0, 4.0]] * 3, 4, [2.0] * 3),  # ceil(4 / 3) = 2
        ([[1.0, 2.0, 4.0]] * 4, 4, [1.0] * 4),
        ([[1.0, 2.0, 4.0]] * 9, 4, [1.0] * 9),  # never less than one slot
        ([[0.0, 0.0, 4.0], [1.0, 2.0, 4.0]], 2, [4.0, 1.0]),  # the smallest size is above the share
        ([[5.0, 2.0, 4.0]], 8, [5.0]),  # more slots may be slower
        ([[0.0, 0.0, 0.0]], 8, [1.0]),
        ([[1.0, 2.0, 4.0]], 0, [1.0]),
    ],
)
def test_the_fair_share_is_the_best_goodput_on_an_equal_part(
    goodput: list[list[float]], capacity: float, expected: list[float]
) -> None:
    assert at_fair_share(jobs_on_three_sizes(*goodput, capacity=capacity)).tolist() == expected


def test_the_fair_share_counts_the_slots_of_all_kinds() -> None:
    round_ = a_round([[1.0, 4.0]] * 2, [1, 4], kind=[0, 1], capacity=[4, 4])
    assert at_fair_share(round_).tolist() == [4.0, 4.0]


def test_the_fair_share_does_not_depend_on_what_is_allowed_now() -> None:
    round_ = jobs_on_three_sizes([1.0, 2.0, 4.0], allowed=[[True, False, False]])
    assert at_fair_share(round_).tolist() == [4.0]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_the_fair_share_grows_with_the_capacity(seed: int, capacity: int) -> None:
    small, large = (random_round(seed, capacity=slots) for slots in (capacity, 2 * capacity))
    assert (at_fair_share(small) <= at_fair_share(large)).all()


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_the_fair_share_follows_the_unit_of_goodput(seed: int) -> None:
    round_ = random_round(seed, capacity=6)
    doubled = replace(round_, goodput=2 * round_.goodput)
    runs = (round_.goodput > 0).any(axis=1)
    assert at_fair_share(doubled)[runs] == pytest.approx(2 * at_fair_share(round_)[runs])


def test_no_jobs_have_empty_results() -> None:
    none = a_round(np.zeros((0, 2)), [1, 2], capacity=4)
    for function in (
        clean_goodput,
        usable_goodput,
        known_length,
        weights,
        holding,
        goodput_now,
        at_fair_share,
    ):
        assert len(function(none)) == 0, function
    assert speedup.kind_capacity(none).tolist() == [4.0]
