"""Jobs that must have slots: the best choice that seats them, and what is left when capacity does not suffice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.guaranteed_solve import with_guaranteed_jobs
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution
from service.domain.allocation.knapsack.solver import solve
from tests.unit.service.domain.allocation.knapsack.problems import (
    allowed,
    keeps,
    problem,
    small,
    worth,
)

N = NOTHING
EXACT = 1e-7


def exactly(given: Problem) -> Solution:
    return solve(given, gap=0.0)


def slots(capacity: float, *demand: float) -> Row:
    return Row(name="slots", capacity=capacity, demand=np.array(demand))


def seated(given: Problem, *seats: int) -> Solution:
    return with_guaranteed_jobs(exactly, np.array(seats))(given)


def feasible(given: Problem) -> list[np.ndarray]:
    return [
        chosen
        for chosen in (np.array(one, np.int64) for one in itertools.product(*allowed(given)))
        if keeps(given, chosen)
    ]


def test_without_guaranteed_jobs_the_solver_is_the_same() -> None:
    assert with_guaranteed_jobs(exactly, np.array([N, N])) is exactly
    assert with_guaranteed_jobs(exactly, np.zeros(0, np.int64)) is exactly


def test_a_guaranteed_job_takes_its_slots_from_a_better_one() -> None:
    given = problem([[9.0], [1.0]], (slots(1.0, 1.0),))
    assert exactly(given).chosen.tolist() == [0, N]
    found = seated(given, N, 0)
    assert found.chosen.tolist() == [N, 0]
    assert found.objective == pytest.approx(1.0)
    assert found.bound == pytest.approx(1.0)


def test_a_guaranteed_job_has_slots_even_if_they_harm_it() -> None:
    given = problem([[-3.0, -1.0]], (slots(4.0, 1.0, 2.0),))
    assert exactly(given).chosen.tolist() == [N]
    found = seated(given, 0)
    assert found.chosen.tolist() == [1], "any of its configurations satisfies the guarantee"
    assert found.objective == pytest.approx(-1.0)


def test_the_seat_only_proves_that_there_is_room() -> None:
    given = problem([[1.0, 2.0], [1.0, 5.0]], (slots(3.0, 1.0, 2.0),))
    assert seated(given, 0, N).chosen.tolist() == [0, 1]


@pytest.mark.parametrize("utility", [-np.inf, np.nan, np.inf])
def test_a_job_without_an_allowed_configuration_is_exempt(utility: float) -> None:
    given = problem([[utility], [2.0]], (slots(1.0, 1.0),))
    assert seated(given, 0, N).chosen.tolist() == [N, 0]
    assert seated(given, 0, 0).objective == pytest.approx(2.0)


def test_idle_values_that_are_no_numbers_count_as_nothing() -> None:
    given = problem([[9.0], [1.0]], (slots(1.0, 1.0),), idle=[np.nan, -np.inf])
    found = seated(given, N, 0)
    assert found.chosen.tolist() == [N, 0]
    assert found.objective == pytest.approx(1.0)


def test_with_too_little_capacity_as_many_as_possible_have_slots() -> None:
    given = problem([[9.0, 9.0], [1.0, 2.0], [1.0, 2.0]], (slots(2.0, 1.0, 2.0),))
    found = seated(given, 1, 0, 0)
    assert (found.chosen != N).sum() == 2
    assert found.objective == pytest.approx(worth(given, found.chosen)), "the penalty is not in the objective"
    assert found.bound >= found.objective - EXACT


@given(small(), st.data())
@settings(max_examples=35)
def test_solution_is_the_best_choice_that_seats_every_guaranteed_job(
    given: Problem, data: st.DataObject
) -> None:
    assume(given.utility.size > 0)
    choices = feasible(given)
    seats = data.draw(st.sampled_from(choices))
    must = seats != N
    best = max(worth(given, one) for one in choices if (one[must] != N).all())
    found = with_guaranteed_jobs(exactly, seats)(given)
    assert keeps(given, found.chosen)
    assert (found.chosen[must] != N).all()
    assert found.objective == pytest.approx(best, abs=EXACT)
    assert found.objective == pytest.approx(worth(given, found.chosen), abs=EXACT)
    assert found.bound >= best - EXACT


@given(small(), st.data())
@settings(max_examples=25)
def test_seats_that_do_not_fit_are_filled_as_far_as_possible(given: Problem, data: st.DataObject) -> None:
    assume(given.utility.size > 0)
    columns = given.utility.shape[1]
    seats = np.array(
        data.draw(st.lists(st.integers(-1, columns - 1), min_size=len(given.idle), max_size=len(given.idle)))
    )
    found = with_guaranteed_jobs(exactly, seats)(given)
    must = seats != N
    most = max(int((one[must] != N).sum()) for one in feasible(given))
    assert int((found.chosen[must] != N).sum()) == most
    assert found.objective == pytest.approx(worth(given, found.chosen), abs=EXACT)
    assert found.bound >= found.objective - EXACT


def lazy(given: Problem) -> Solution:
    """A solver out of time: it returns its initial choice if that keeps the rows, otherwise nothing."""
    chosen = given.current if keeps(given, given.current) else np.full(len(given.idle), N)
    objective = worth(given, chosen)
    return Solution(
        chosen=chosen,
        objective=objective,
        bound=objective + 1e6,
        prices=np.zeros(len(given.rows)),
        status="limit",
    )


def test_a_solver_that_misses_a_seat_starts_again_from_the_seats() -> None:
    given = problem([[9.0], [1.0]], (slots(1.0, 1.0),), current=[0, N])
    assert lazy(given).chosen.tolist() == [0, N]
    found = with_guaranteed_jobs(lazy, np.array([N, 0]))(given)
    assert found.chosen.tolist() == [N, 0]
    assert found.objective == pytest.approx(1.0)


def test_the_second_attempt_does_not_replace_a_better_first_one() -> None:
    """The seats of the round need more than this problem has, and the first attempt seated one job at least."""
    given = problem([[9.0], [1.0]], (slots(1.0, 1.0),), current=[0, N])
    found = with_guaranteed_jobs(lazy, np.array([0, 0]))(given)
    assert found.chosen.tolist() == [0, N]
    assert found.objective == pytest.approx(9.0)


def test_seats_that_a_problem_does_not_offer_are_no_initial_choice() -> None:
    given = problem([[-np.inf, 1.0], [5.0, -np.inf]], (slots(2.0, 2.0, 2.0),))
    calls: list[Problem] = []

    def recorded(one: Problem) -> Solution:
        calls.append(one)
        return lazy(one)

    with_guaranteed_jobs(recorded, np.array([0, N]))(given)
    assert [one.current.tolist() for one in calls] == [[N, N], [N, N]]
    calls.clear()
    with_guaranteed_jobs(recorded, np.array([1, N]))(given)
    assert [one.current.tolist() for one in calls] == [[N, N], [1, N]]


def test_the_rest_of_a_problem_is_passed_on_unchanged() -> None:
    given = problem([[9.0], [1.0]], (slots(1.0, 1.0),), idle=[0.5, 0.25], current=[0, N])
    calls: list[Problem] = []

    def recorded(one: Problem) -> Solution:
        calls.append(one)
        return exactly(one)

    found = with_guaranteed_jobs(recorded, np.array([N, 0]))(given)
    (call,) = calls
    assert call.utility is given.utility
    assert call.rows is given.rows
    assert call.idle[0] == 0.5, "a job without a seat pays no penalty"
    assert call.idle[1] < 0.25 - 9.0
    assert found.objective == pytest.approx(0.5 + 1.0)
    assert replace(given).idle.tolist() == [0.5, 0.25]
