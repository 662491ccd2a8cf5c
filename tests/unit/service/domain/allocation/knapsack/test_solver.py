"""The solver against every possible choice, on all kinds of rows, and with values such as NaN."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution
from service.domain.allocation.knapsack.solver import solve
from tests.unit.service.domain.allocation.knapsack.problems import (
    best_of_all,
    idle_of,
    keeps,
    problem,
    random_problem,
    small,
    worth,
)

EXACT = 1e-8


def same(one: Solution, other: Solution) -> bool:
    return bool(
        (one.chosen == other.chosen).all()
        and (one.prices == other.prices).all()
        and (one.objective, one.bound, one.status) == (other.objective, other.bound, other.status)
    )


def dual_value(given: Problem, prices: np.ndarray) -> float:
    """Return the bound that the prices prove, from the problem itself. All of its values must be finite."""
    idle = idle_of(given)
    total = sum(price * row.capacity for price, row in zip(prices, given.rows, strict=True))
    for job in range(len(idle)):
        fitting = [
            given.utility[job, column]
            - sum(
                price * row.demand[column]
                for price, row in zip(prices, given.rows, strict=True)
                if row.jobs is None or row.jobs[job]
            )
            for column in range(given.utility.shape[1])
            if all(
                row.demand[column] <= row.capacity for row in given.rows if row.jobs is None or row.jobs[job]
            )
        ]
        total += max([idle[job], *fitting])
    return float(total)


def test_gain_that_cancels_what_idle_jobs_cost_is_proven_optimal() -> None:
    """The objective is 0, and the bound is one rounding above it."""
    given = Problem(
        utility=np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        idle=np.array([0.0, -1.910156, 0.0]),
        rows=(
            Row(name="0", capacity=1.25, demand=np.ones(3)),
            Row(name="1", capacity=0.0, demand=np.zeros(3)),
        ),
        current=np.zeros(3, dtype=np.int64),
    )
    found = solve(given, gap=0.0)
    assert (found.status, found.objective, found.bound) == ("optimal", 0.0, 0.0)


@settings(max_examples=40)
@given(small())
def test_solver_finds_the_best_choice_and_proves_it(given: Problem) -> None:
    best = best_of_all(given)
    found = solve(given, gap=0.0)
    assert found.status == "optimal"
    assert keeps(given, found.chosen)
    assert found.objective == pytest.approx(worth(given, found.chosen), abs=EXACT)
    assert found.objective == pytest.approx(best, abs=EXACT)
    assert found.bound >= best - EXACT


@settings(max_examples=40)
@given(small(odd=True), st.sampled_from([0.0, 1e-3, 0.3]), st.sampled_from([0.0, 1.0]), st.booleans())
def test_whatever_is_asked_there_is_an_answer_that_keeps_every_row(
    given: Problem, gap: float, effort: float, expired: bool
) -> None:
    found = solve(given, gap=gap, effort=effort, expired=lambda: expired)
    assert keeps(given, found.chosen)
    assert np.isfinite([found.objective, found.bound, *found.prices]).all()
    assert (found.prices >= 0.0).all()
    assert found.objective == pytest.approx(worth(given, found.chosen), abs=EXACT)
    assert best_of_all(given) <= found.bound + EXACT
    if found.status == "within_gap":
        assert found.gap <= gap


@settings(max_examples=25)
@given(small(), st.booleans())
def test_solution_is_never_worse_than_the_present_choice(given: Problem, expired: bool) -> None:
    present = np.where(given.current >= given.utility.shape[1], NOTHING, np.maximum(given.current, NOTHING))
    found = solve(given, gap=1.0, effort=0.0, expired=lambda: expired)
    if keeps(given, present):
        assert found.objective >= worth(given, present) - EXACT


@settings(max_examples=25)
@given(small(), st.integers(0, 3), st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_less_capacity_is_never_worth_more(given: Problem, which: int, share: float) -> None:
    if not given.rows:
        return
    which %= len(given.rows)
    less = dataclasses.replace(given.rows[which], capacity=given.rows[which].capacity * share)
    rows = (*given.rows[:which], less, *given.rows[which + 1 :])
    assert solve(dataclasses.replace(given, rows=rows), gap=0.0).bound <= solve(given, gap=0.0).bound + EXACT


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("common", "quotas"), [(1, 0), (3, 0), (2, 5)])
def test_larger_problems_are_solved_within_the_gap(seed: int, common: int, quotas: int) -> None:
    given = random_problem(seed, jobs=40, columns=12, common=common, quotas=quotas, load=0.7)
    found = solve(given, gap=1e-2)
    assert found.status in {"optimal", "within_gap"}
    assert keeps(given, found.chosen)
    assert found.objective == pytest.approx(worth(given, found.chosen))
    assert same(found, solve(given, gap=1e-2))
    exact = solve(given, gap=0.0)
    assert exact.status == "optimal"
    assert found.objective <= exact.objective + EXACT <= found.bound + 2 * EXACT
    proven = dual_value(given, found.prices)
    assert exact.objective <= proven + EXACT
    assert proven == pytest.approx(exact.objective, rel=0.1), "prices that are far from the best prove little"


@pytest.mark.parametrize("seed", range(4))
def test_a_row_with_room_costs_nothing(seed: int) -> None:
    given = random_problem(seed, jobs=30, columns=10, common=2, quotas=0, load=0.7)
    roomy = Row(name="roomy", capacity=1e6, demand=np.ones(10))
    found = solve(dataclasses.replace(given, rows=(*given.rows, roomy)), gap=0.0)
    assert found.prices[2] == pytest.approx(0.0, abs=1e-9)
    assert (found.prices[:2] > 0.0).all(), "there is demand for three times of what there is"


def test_a_price_falls_as_capacity_grows() -> None:
    """Every job's second slot is worth less than its first, so one more slot is worth less and less."""
    utility = [[1.0 + job / 10, 1.5 + job / 10] for job in range(8)]
    prices = [
        solve(
            problem(utility, (Row(name="slots", capacity=slots, demand=np.array([1.0, 2.0])),)), gap=0.0
        ).prices[0]
        for slots in range(1, 18)
    ]
    assert all(after <= before + EXACT for before, after in itertools.pairwise(prices))
    assert prices[0] == pytest.approx(1.65, abs=0.06), "the one slot goes to the job that gains most"
    assert prices[-1] == pytest.approx(0.0, abs=EXACT), "16 slots are all that they want"


def test_equal_jobs_are_served_in_order() -> None:
    jobs = 10_000
    given = problem(
        np.tile([1.0, 1.6, 1.9], (jobs, 1)),
        (Row(name="slots", capacity=12_001, demand=np.array([1.0, 2.0, 4.0])),),
    )
    found = solve(given, gap=0.0)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(1.6 * 2_001 + 1.0 * 7_999)
    assert (np.diff(np.where(found.chosen == NOTHING, -1, found.chosen)) <= 0).all()


def test_jobs_alike_keep_what_they_hold() -> None:
    row = Row(name="slots", capacity=2, demand=np.array([1.0]))
    given = problem(np.array([[1.0], [1.1], [1.1]]), (row,), current=[NOTHING, 0, 0])
    assert solve(given, gap=0.0).chosen.tolist() == [NOTHING, 0, 0]


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_choose(shape: tuple[int, int]) -> None:
    rows = (Row(name="slots", capacity=4, demand=np.ones(shape[1])),)
    found = solve(
        Problem(
            utility=np.ones(shape), idle=np.ones(shape[0]), rows=rows, current=np.zeros(shape[0], np.int64)
        )
    )
    assert found.chosen.tolist() == [NOTHING] * shape[0]
    assert found.objective == found.bound == shape[0]
    assert found.status == "optimal"


def test_without_rows_everybody_gets_the_best() -> None:
    assert solve(problem([[1.0, 3.0, 2.0], [-1.0, -2.0, -3.0]])).chosen.tolist() == [1, NOTHING]


def test_slots_held_beyond_the_capacity_are_given_up() -> None:
    """Nodes were lost: of four jobs that hold four slots each there is room for one and a half."""
    row = Row(name="slots", capacity=6, demand=np.array([1.0, 2.0, 4.0]))
    found = solve(problem(np.tile([1.0, 1.5, 2.0], (4, 1)), (row,), current=[2] * 4), gap=0.0)
    assert found.objective == pytest.approx(5.0)
    assert np.bincount(found.chosen, minlength=3).tolist() == [2, 2, 0]


def test_quotas_that_contradict_leave_their_jobs_with_nothing() -> None:
    two = np.array([True, True, False])
    rows = (
        Row(name="slots", capacity=8, demand=np.array([1.0, 2.0])),
        Row(name="at most none", capacity=0, demand=np.array([1.0, 2.0]), jobs=two),
        Row(name="less than none", capacity=-3, demand=np.array([1.0, 2.0]), jobs=two),
    )
    assert solve(problem([[1.0, 2.0]] * 3, rows), gap=0.0).chosen.tolist() == [NOTHING, NOTHING, 1]


def test_dollars_that_do_not_add_up_exactly_still_fit() -> None:
    row = Row(name="dollars", capacity=0.3, demand=np.array([0.1]))
    assert solve(problem([[1.0]] * 3, (row,)), gap=0.0).chosen.tolist() == [0, 0, 0]


def test_utilities_of_very_different_size_keep_their_order() -> None:
    """Having nothing costs a thousand, as with Pollux's fitness; the sizes differ by hundredths."""
    rng = np.random.default_rng(3)
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    utility = -1.0 / (sizes ** rng.uniform(0.4, 0.9, (60, 1)))
    row = Row(name="slots", capacity=150, demand=sizes)
    found = solve(problem(utility, (row,), idle=np.full(60, -1000.0)), gap=0.0)
    assert found.status == "optimal"
    assert (found.chosen != NOTHING).all()
    assert sizes[found.chosen].sum() == 150
