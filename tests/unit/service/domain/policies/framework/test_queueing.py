"""Tests of rigid scheduling: requested sizes, the remaining capacity of rows, turns, and who is served."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.queueing import (
    Capacity,
    ordered_choices,
    requested_columns,
    requested_goodput,
    serve_in_order,
    served,
    turns_first,
)
from tests.unit.service.domain.policies.rounds import a_round, is_feasible, random_round

INF, NAN = math.inf, math.nan


def rigid(sizes: list[int], *, capacity: float = 8.0, **fields: Any) -> RoundInput:
    """Jobs that run on 1, 2 or 4 slots of one kind and ask for `sizes`."""
    return a_round(
        [[10.0, 20.0, 40.0]] * len(sizes), [1, 2, 4], capacity=capacity, requested_slots=sizes, **fields
    )


def row(*demand: float, capacity: float, jobs: list[bool] | None = None) -> Row:
    """A row that counts all jobs, or only these."""
    counted = None if jobs is None else np.array(jobs)
    return Row(name="row", capacity=capacity, demand=np.array(demand), jobs=counted)


@pytest.mark.parametrize(
    ("goodput", "requested", "expected"),
    [
        ([1.0, 2.0, 4.0], 2, [False, True, False]),
        ([1.0, 2.0, 4.0], 3, [False, True, False]),
        ([1.0, 2.0, 4.0], 9, [False, False, True]),
        ([1.0, 2.0, 4.0], 0, [True, False, False]),
        ([1.0, 2.0, 4.0], -1, [True, False, False]),
        ([0.0, 0.0, 4.0], 2, [False, False, True]),
        ([1.0, 0.0, 4.0], 2, [True, False, False]),
        ([0.0, 0.0, 0.0], 2, [False, False, False]),
        ([NAN, 2.0, 4.0], 1, [False, True, False]),
    ],
)
def test_the_requested_size_is_the_largest_up_to_it_else_the_smallest_beyond(
    goodput: list[float], requested: int, expected: list[bool]
) -> None:
    round_ = a_round([goodput], [1, 2, 4], capacity=8, requested_slots=[requested])
    assert requested_columns(round_).tolist() == [expected]


def test_the_requested_size_is_sought_on_all_kinds_together() -> None:
    slots, kind = [1, 2, 2, 4], [0, 0, 1, 1]
    round_ = a_round([[1.0, 2.0, 5.0, 9.0]], slots, kind=kind, capacity=4, requested_slots=[2])
    assert requested_columns(round_).tolist() == [[False, True, True, False]]


def test_a_size_that_is_not_allowed_now_is_not_requested() -> None:
    assert requested_columns(rigid([4], allowed=[[True, True, False]])).tolist() == [[False, True, False]]


def test_a_firm_job_is_offered_what_it_holds_besides_what_it_requested() -> None:
    round_ = rigid([1, 1], current=[2, 2], firm=[True, False])
    assert requested_goodput(round_).tolist() == [[10.0, 0.0, 40.0], [10.0, 0.0, 0.0]]
    assert requested_goodput(replace(round_, firm=None)).tolist() == [[10.0, 0.0, 0.0]] * 2


@pytest.mark.parametrize(
    ("firm", "seats", "expected"),
    [
        (None, None, [3, 2, 1, 0]),
        ([False] * 4, None, [3, 2, 1, 0]),
        (None, [0, -1, -1, -1], [3, 2, 1, 0]),
        ([False] * 4, [0, -1, 0, -1], [2, 0, 3, 1]),
        ([False, True, False, True], [0, -1, -1, 0], [3, 1, 0, 2]),
    ],
)
def test_firm_jobs_come_first_then_jobs_with_a_seat(
    firm: list[bool] | None, seats: list[int] | None, expected: list[int]
) -> None:
    """Within each group, the order of the policy remains."""
    fields = {name: value for name, value in (("firm", firm), ("seats", seats)) if value is not None}
    assert turns_first(rigid([1] * 4, **fields), np.array([3, 2, 1, 0])).tolist() == expected


def test_jobs_whose_turn_is_next_come_after_firm_jobs_and_before_the_order_of_the_policy() -> None:
    """The job that keeps its slots is not asked for another turn."""
    round_ = rigid([1] * 4, firm=[False, False, False, True], seats=[0] * 4, next_turn=[0, 1, 2, 3])
    assert turns_first(round_, np.array([0, 1, 2, 3])).tolist() == [3, 2, 1, 0]


def fits(capacity: Capacity, job: int, columns: int) -> list[bool]:
    return capacity.fits(job, np.arange(columns)).tolist()


@pytest.mark.parametrize(
    ("column", "other", "fits", "left"), [(0, 1, True, 0), (1, 0, True, 1), (0, 2, False, 1)]
)
def test_a_column_is_swapped_if_the_difference_fits(column: int, other: int, fits: bool, left: int) -> None:
    """A second job has two of four slots, and the first one swaps sizes of 1, 2 and 4."""
    given = a_round(np.ones((2, 3)), [1, 2, 4], capacity=4)
    capacity = Capacity(given.rows, 2, 3)
    capacity.take(1, 1)
    capacity.take(0, column)
    assert capacity.swap(0, column, other) is fits
    free = capacity.fits(0, np.arange(3)).tolist()
    assert free == [size <= left for size in (1, 2, 4)]


def test_a_swap_counts_only_the_rows_of_the_job() -> None:
    quota = Row(name="quota", capacity=1.0, demand=np.array([1.0, 2.0]), jobs=np.array([True, False]))
    given = a_round(np.ones((2, 2)), [1, 2], capacity=4, rows=(quota,))
    capacity = Capacity(given.rows, 2, 2)
    capacity.take(0, 0)
    capacity.take(1, 0)
    assert not capacity.swap(0, 0, 1)
    assert capacity.swap(1, 0, 1)


def test_a_row_of_some_jobs_binds_only_those() -> None:
    quota = row(1, 2, capacity=1.0, jobs=[True, False])
    capacity = Capacity((row(1, 2, capacity=8.0), quota), 2, 2)
    assert fits(capacity, 0, 2) == [True, False]
    assert fits(capacity, 1, 2) == [True, True]
    capacity.take(1, 1)
    assert fits(capacity, 0, 2) == [True, False]
    capacity.take(0, 0)
    assert fits(capacity, 0, 2) == [False, False]
    assert fits(capacity, 1, 2) == [True, True]


def test_a_quota_is_told_from_a_row_of_all_jobs() -> None:
    capacity = Capacity((row(1, 2, capacity=0.0), row(1, 2, capacity=1.0, jobs=[True, False])), 2, 2)
    assert fits(capacity, 0, 2) == [False, False]
    assert capacity.fits_quota(0, np.arange(2)).tolist() == [True, False]
    assert capacity.fits_quota(1, np.arange(2)).tolist() == [True, True]


@pytest.mark.parametrize(
    ("capacity", "demand", "expected"),
    [
        (INF, 1e12, True),
        (INF, INF, False),
        (INF, NAN, False),
        (NAN, 1.0, False),
        (NAN, 0.0, True),
        (-5.0, 0.0, True),
        (-5.0, 1.0, False),
        (1.0, -3.0, True),
        (0.3, 0.1 + 0.2, True),  # a sum of demands may round up
        (1.0, 1.001, False),
    ],
)
def test_limits_of_capacity_and_demand(capacity: float, demand: float, expected: bool) -> None:
    assert fits(Capacity((row(demand, capacity=capacity),), 1, 1), 0, 1) == [expected]


def test_a_negative_demand_gives_nothing_back() -> None:
    capacity = Capacity((row(-5.0, 1.0, capacity=1.0),), 2, 2)
    capacity.take(0, 0)
    capacity.take(0, 1)
    assert fits(capacity, 1, 2) == [True, False]


@pytest.mark.parametrize(
    ("left", "columns", "expected"),
    [
        (0.0, [True, True], True),
        (1.0, [True, True], False),
        (1.0, [False, True], True),
        (2.0, [False, True], False),
        (9.0, [False, False], True),
    ],
)
def test_capacity_is_exhausted_when_no_wanted_column_fits(
    left: float, columns: list[bool], expected: bool
) -> None:
    quota = row(1, 2, capacity=0.0, jobs=[True])
    capacity = Capacity((row(1, 2, capacity=left), quota), 1, 2)
    assert capacity.exhausted(np.array(columns)) is expected


def test_a_job_keeps_its_column_where_that_fits_although_another_is_faster() -> None:
    round_ = a_round([[1.0, 9.0]], [1, 1], kind=[0, 1], capacity=1, current=[0])
    assert serve_in_order(round_, np.array([0]), blocking=False).tolist() == [0]
    gone = replace(round_, rows=(replace(round_.rows[0], capacity=0.0), round_.rows[1]))
    assert serve_in_order(gone, np.array([0]), blocking=False).tolist() == [1]


@pytest.mark.parametrize(
    ("capacity", "order", "blocking", "expected"),
    [
        pytest.param(4.0, [2, 0, 1], False, [NOTHING, 1, 0], id="overtaken"),
        pytest.param(4.0, [2, 0, 1], True, [NOTHING, NOTHING, 0], id="blocks"),
        pytest.param(3.0, [0, 1, 2], True, [NOTHING, 1, 0], id="too large for the cluster"),
        pytest.param(5.0, [2, 0, 1], True, [2, NOTHING, 0], id="fits"),
    ],
)
def test_a_waiting_job_is_overtaken_unless_it_blocks(
    capacity: float, order: list[int], blocking: bool, expected: list[int]
) -> None:
    round_ = rigid([4, 2, 1], capacity=capacity)
    assert serve_in_order(round_, np.array(order), blocking=blocking).tolist() == expected


def test_a_job_that_waits_for_its_own_quota_blocks_nobody() -> None:
    quota = row(1, 2, 4, capacity=2.0, jobs=[True, True, False])
    round_ = rigid([2, 1, 1], capacity=4.0, rows=(quota,))
    assert serve_in_order(round_, np.array([0, 1, 2]), blocking=True).tolist() == [1, NOTHING, 0]


def test_the_utility_of_a_turn_falls_from_one() -> None:
    choices = served(rigid([1, 1, 1, 1], capacity=2.0), np.array([2, 0, 3, 1]))
    assert choices.utility[:, 0].tolist() == [0.75, 0.25, 1.0, 0.5]
    assert np.isneginf(choices.utility[:, 1:]).all()
    assert choices.chosen.tolist() == [0, NOTHING, 0, NOTHING]
    assert choices.solution.objective == choices.solution.bound == 1.75
    assert choices.solution.prices.tolist() == [0.0]
    assert (choices.unit, choices.solution.status) == ("turn", "optimal")
    assert choices.idle.tolist() == [0.0] * 4


@pytest.mark.parametrize(("blocking", "expected"), [(False, [NOTHING, 0]), (True, [0, NOTHING])])
def test_guaranteed_jobs_precede_the_order_of_a_policy_that_does_not_block(
    blocking: bool, expected: list[int]
) -> None:
    round_ = rigid([1, 1], capacity=1.0, firm=[False, True], seats=[NOTHING, NOTHING])
    assert served(round_, np.array([0, 1]), blocking=blocking).chosen.tolist() == expected


def test_choices_of_an_order_add_up_their_utilities() -> None:
    round_ = rigid([1, 1, 1])
    utility = np.array([[3.0, -INF, -INF], [5.0, -INF, -INF], [7.0, -INF, -INF]])
    choices = ordered_choices(round_, np.array([0, NOTHING, 0]), utility, "points")
    assert (choices.solution.objective, choices.unit) == (10.0, "points")


def test_no_jobs() -> None:
    none = rigid([])
    assert (
        served(
            replace(none, goodput=np.zeros((0, 3)), allowed=np.ones((0, 3), bool)), np.zeros(0, int)
        ).chosen.size
        == 0
    )


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.randoms(use_true_random=False))
def test_any_order_that_is_served_keeps_every_row(seed: int, blocking: bool, random: Any) -> None:
    quota = row(1, 2, 3, 4, capacity=3.0, jobs=[True, False, True, False])
    round_ = random_round(seed, rows=(quota,), requested_slots=[random.randint(1, 4) for _ in range(4)])
    order = list(range(4))
    random.shuffle(order)
    chosen = serve_in_order(round_, np.array(order), blocking=blocking)
    assert is_feasible(round_.rows, chosen[None])[0]
    requested = requested_columns(round_)
    assert all(column == NOTHING or requested[job, column] for job, column in enumerate(chosen))


def test_capacity_is_exhausted_when_each_column_fails_one_of_the_rows() -> None:
    """The first row allows the first column only, and the second row the second column only."""
    capacity = Capacity((row(1, 2, capacity=1.0), row(2, 1, capacity=1.0)), 1, 2)
    assert capacity.exhausted(np.array([True, True]))
    assert not Capacity((row(1, 2, capacity=1.0), row(1, 1, capacity=1.0)), 1, 2).exhausted(np.ones(2, bool))


def test_a_job_blocks_if_one_of_its_columns_could_run_in_an_empty_cluster() -> None:
    """Two slots are too many for the second kind; one of the first kind's two slots is taken."""
    round_ = a_round(
        [[1.0, 0.0, 0.0], [0.0, 2.0, 2.0], [1.0, 0.0, 0.0]],
        [1, 2, 2],
        kind=[0, 0, 1],
        capacity=[2, 1],
        requested_slots=[1, 2, 1],
    )
    order = np.array([0, 1, 2])
    assert serve_in_order(round_, order, blocking=True).tolist() == [0, NOTHING, NOTHING]
    assert serve_in_order(round_, order, blocking=False).tolist() == [0, NOTHING, 0]
