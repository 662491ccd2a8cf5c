"""The internal form of a problem: exclusions, scaled rows, cells of jobs, and the sums over choices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.core import FULL, build
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from tests.unit.service.domain.allocation.knapsack.problems import (
    choices_of,
    core_of,
    gainful,
    keeps,
    problem,
    random_problem,
    small,
    worth,
)

N = NOTHING
NAN, INF = np.nan, np.inf


def row(capacity: float, *demand: float, jobs: list[bool] | None = None) -> Row:
    return Row(
        name="row",
        capacity=capacity,
        demand=np.array(demand),
        jobs=None if jobs is None else np.array(jobs),
    )


@pytest.mark.parametrize(
    ("utility", "idle", "gain"),
    [
        (3.0, 0.0, 3.0),
        (3.0, 1.0, 2.0),
        (-1.0, -3.0, 2.0),
        (3.0, NAN, 3.0),
        (3.0, INF, 3.0),
        (3.0, -1e100, 3.0),
        (9e99, 0.0, 9e99),
    ],
)
def test_a_gain_is_the_utility_over_having_nothing(utility: float, idle: float, gain: float) -> None:
    core = core_of(problem([[utility]], idle=[idle]))
    assert core.gain.tolist() == [[gain]]
    assert core.idle == utility - gain


@pytest.mark.parametrize("utility", [0.0, -1.0, NAN, INF, -INF, 1e100, -1e100])
def test_a_configuration_that_gains_nothing_is_excluded(utility: float) -> None:
    core = core_of(problem([[utility, 1.0]]))
    assert core.gain.tolist() == [[-INF, 1.0]]


def test_jobs_that_can_gain_nothing_are_left_out() -> None:
    core = core_of(problem([[0.0, -1.0], [2.0, 1.0], [NAN, -2.0], [-1.0, 3.0]], idle=[5.0, 0.0, 1.0, 0.0]))
    assert core.job.tolist() == [1, 3]
    assert core.gain.tolist() == [[2.0, 1.0], [-INF, 3.0]]
    assert core.idle == 6.0, "the idle worth of all jobs counts"


@pytest.mark.parametrize(
    ("capacity", "demand", "fits"),
    [
        (4.0, 4.0, True),
        (4.0, 4.0 * (1 + 5e-11), True),
        (4.0, 4.0 * (1 + 1e-9), False),
        (4.0, 0.0, True),
        (4.0, -2.0, True),
        (4.0, NAN, False),
        (4.0, INF, False),
        (INF, 1e9, True),
        (INF, INF, False),
        (0.0, 1.0, False),
        (0.0, 0.0, True),
        (-3.0, 1.0, False),
        (-3.0, 0.0, True),
        (NAN, 1.0, False),
        (NAN, 0.0, True),
        (1e-101, 1e-102, False),
    ],
)
def test_a_configuration_that_does_not_fit_alone_is_excluded(
    capacity: float, demand: float, fits: bool
) -> None:
    core = core_of(problem([[1.0, 1.0]], (row(capacity, demand, 0.0),)))
    assert (core.gain[0] > 0.0).tolist() == [fits, True]


def test_only_the_jobs_of_a_row_lose_what_does_not_fit_it() -> None:
    core = core_of(problem([[1.0, 2.0]] * 2, (row(1.0, 1.0, 2.0, jobs=[True, False]),)))
    by_job = dict(zip(core.job.tolist(), core.gain.tolist(), strict=True))
    assert by_job == {0: [1.0, -INF], 1: [1.0, 2.0]}


@pytest.mark.parametrize(
    ("one", "binds"),
    [
        (row(4.0, 1.0, 2.0), True),
        (row(4.0, 0.0, 2.0), True),
        (row(4.0, 0.0, 0.0), False),
        (row(4.0, -1.0, 0.0), False),
        (row(INF, 1.0, 2.0), False),
        (row(0.0, 0.0, 2.0), False),
        (row(4.0, 1.0, 2.0, jobs=[False, False]), False),
        (row(4.0, 1.0, 2.0, jobs=[False, True]), True),
    ],
)
def test_rows_that_cannot_bind_are_left_out(one: Row, binds: bool) -> None:
    other = row(8.0, 1.0, 1.0)
    core = core_of(problem([[1.0, 1.0]] * 2, (one, other)))
    assert core.row.tolist() == ([0, 1] if binds else [1])
    assert core.capacity.tolist() == ([4.0, 8.0] if binds else [8.0])


def test_demands_are_fractions_of_the_capacity() -> None:
    core = core_of(
        problem([[1.0] * 4], (row(8.0, 1.0, 8.0, -3.0, 8.0 * (1 + 5e-11)), row(0.5, 0.1, 0, 0, 0)))
    )
    assert core.demand.tolist() == [[0.125, 1.0, 0.0, 1.0], [0.2, 0.0, 0.0, 0.0]]


def test_jobs_counted_by_the_same_rows_lie_in_one_cell() -> None:
    members = [True, False, True, False, True]
    core = core_of(problem([[1.0]] * 5, (row(3.0, 1.0), row(2.0, 1.0, jobs=members))), cells=1)
    assert core.counts.shape == (2, 2)
    assert core.counts[0].tolist() == [1.0, 1.0], "the common row counts every cell"
    counted = core.counts[1, core.cell]
    assert {job: bool(is_in) for job, is_in in zip(core.job.tolist(), counted, strict=True)} == dict(
        enumerate(members)
    )
    assert (np.diff(core.cell) >= 0).all()


@pytest.mark.parametrize(("wanted", "cells"), [(0, 1), (1, 1), (2, 2), (3, 3), (7, 7), (99, 7)])
def test_a_problem_has_as_many_cells_as_asked_or_one_for_each_job(wanted: int, cells: int) -> None:
    core = build(problem([[1.0]] * 7, (row(3.0, 1.0),)), cells=wanted)
    assert core.counts.shape == (1, max(cells, 1))
    assert core.job.tolist() == list(range(7))
    assert np.bincount(core.cell).max() == -(-7 // max(wanted, 1)), "cells are of equal size"


def test_a_cell_never_has_jobs_of_different_rows() -> None:
    given = random_problem(1, jobs=30, columns=4, common=1, quotas=5, load=1.0)
    core = core_of(given, cells=3)
    for cell in range(core.counts.shape[1]):
        mine = core.job[core.cell == cell]
        for index, one in enumerate(given.rows[1:], start=1):
            assert one.jobs is not None
            assert len(set(one.jobs[mine].tolist())) == 1
            assert core.counts[index, cell] == one.jobs[mine[0]]


def test_each_job_takes_the_first_of_its_best_columns() -> None:
    core = core_of(problem([[2.0, 3.0, 3.0], [1.0, 5.0, 4.0]], (row(4.0, 1.0, 2.0, 2.0),)))
    free, value = core.best_choice(np.zeros(1))
    assert (free.tolist(), value.tolist()) == ([1, 1], [3.0, 5.0])
    priced, value = core.best_choice(np.array([4.0]))
    assert (priced.tolist(), value.tolist()) == ([0, 1], [1.0, 3.0])
    ruinous, value = core.best_choice(np.array([8.0]))
    assert (ruinous.tolist(), value.tolist()) == ([N, 1], [0.0, 1.0]), "a worth of exactly 0 is nothing"


def test_prices_count_for_the_jobs_of_their_row_only() -> None:
    core = core_of(problem([[3.0]] * 2, (row(1.0, 1.0, jobs=[True, False]),)))
    choice, _ = core.best_choice(np.array([5.0]))
    assert dict(zip(core.job.tolist(), choice.tolist(), strict=True)) == {0: N, 1: 0}
    costs = core.cell_prices(np.array([5.0]))
    assert sorted(costs[:, 0].tolist()) == [0.0, 5.0]


def test_more_jobs_than_a_block_are_priced_alike() -> None:
    given = random_problem(2, jobs=1100, columns=5, common=2, quotas=3, load=0.5)
    core = core_of(given, cells=16)
    prices = np.linspace(200.0, 1500.0, len(core.row))
    choice, value = core.best_choice(prices)
    net = core.gain - core.cell_prices(prices)[core.cell]
    assert value == pytest.approx(np.maximum(net.max(axis=1), 0.0))
    assert (choice == np.where(net.max(axis=1) > 0.0, net.argmax(axis=1), N)).all()
    assert 0 < (choice == N).sum() < len(choice)


@given(gainful(), st.data())
@settings(max_examples=40)
def test_usage_adds_up_over_cells_and_jobs(given: Problem, data: st.DataObject) -> None:
    core = core_of(given, cells=data.draw(st.integers(1, 4)))
    choice = data.draw(st.sampled_from(list(choices_of(core))[:64]))
    usage = core.usage(choice)
    assert core.cell_usage(choice).sum(axis=0) == pytest.approx(usage)
    chosen = np.full(len(given.idle), N)
    chosen[core.job] = choice
    taken = [given.rows[index].taken(chosen) for index in core.row]
    assert usage * core.capacity == pytest.approx(np.array(taken))
    some = np.flatnonzero(np.arange(len(core.row)) % 2 == 0)
    assert core.usage(choice, some) == pytest.approx(usage[some])


@given(small())
@settings(max_examples=40)
def test_a_choice_fits_the_core_if_it_keeps_the_rows_and_is_worth_the_same(given: Problem) -> None:
    core = core_of(given)
    for choice in list(choices_of(core))[:40]:
        chosen = np.full(len(given.idle), N)
        chosen[core.job] = choice
        assert core.fits(choice) == keeps(given, chosen)
        assert core.idle + core.value(choice) == pytest.approx(worth(given, chosen), abs=1e-9)
        assert core.gain_of(choice).sum() == pytest.approx(core.value(choice))


def test_a_choice_that_a_job_may_not_have_does_not_fit() -> None:
    core = core_of(problem([[1.0, -1.0]], (row(4.0, 1.0, 1.0),)))
    assert core.fits(np.array([0]))
    assert not core.fits(np.array([1]))
    assert core.value(np.array([1])) == -INF


@pytest.mark.parametrize(("excess", "fits"), [(0.0, True), (5e-11, True), (1e-9, False)])
def test_rows_are_kept_up_to_the_rounding_of_sums(excess: float, fits: bool) -> None:
    half = 0.5 * (1.0 + excess)
    core = core_of(problem([[1.0]] * 2, (row(1.0, half),)))
    assert core.fits(np.zeros(2, np.int64)) == fits
    assert FULL > 1.0
