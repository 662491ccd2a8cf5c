"""The dynamic program over counts, against trying every choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import Problem, Row, Solution
from service.domain.policies.framework.counts import MAX_WORK, solve_by_counts, solved_by_counts
from tests.unit.service.domain.policies.rounds import (
    a_round,
    brute_force,
    every_choice,
    is_feasible,
    value_of,
)


def a_problem(seed: int, *, rows=(), idle=None) -> Problem:
    rng = np.random.default_rng(seed)
    jobs, demand = 4, np.array([1, 2, 2, 5])
    utility = rng.normal(0, 3, (jobs, len(demand)))
    utility[rng.random(utility.shape) < 0.2] = -np.inf
    return Problem(
        utility=utility,
        idle=rng.normal(-1, 1, jobs) if idle is None else np.full(jobs, idle),
        rows=(Row(name="slots", capacity=float(rng.integers(0, 14)), demand=demand.astype(float)), *rows),
        current=np.full(jobs, -1),
    )


@pytest.mark.parametrize("seed", range(30))
def test_finds_the_best_choice_and_what_one_slot_more_is_worth(seed: int) -> None:
    problem = a_problem(seed)
    solution = solve_by_counts(problem)
    best = brute_force(problem)
    assert solution is not None
    assert solution.objective == solution.bound == pytest.approx(best.objective)
    assert value_of(problem.utility, problem.idle, solution.chosen[None])[0] == pytest.approx(best.objective)
    assert is_feasible(problem.rows, solution.chosen[None]).all()
    row = problem.rows[0]
    roomier = (Row(name="slots", capacity=row.capacity + 1, demand=row.demand),)
    more = brute_force(
        Problem(utility=problem.utility, idle=problem.idle, rows=roomier, current=problem.current)
    )
    assert solution.prices[0] == pytest.approx(more.objective - best.objective)


@pytest.mark.parametrize("seed", range(40))
def test_fills_the_pool_before_it_looks_at_values(seed: int) -> None:
    problem = a_problem(seed)
    choices = every_choice(*problem.utility.shape)
    value = value_of(problem.utility, problem.idle, choices)
    possible = choices[is_feasible(problem.rows, choices) & np.isfinite(value)]
    taken = np.append(problem.rows[0].demand, 0.0)[possible].sum(axis=1)
    fullest = possible[taken == taken.max()]
    solution = solve_by_counts(problem, fill=True)
    assert solution is not None
    assert solution.objective == pytest.approx(value_of(problem.utility, problem.idle, fullest).max())


def test_a_job_that_must_have_something_gets_it_or_there_is_no_answer() -> None:
    problem = a_problem(3, idle=-np.inf)
    utility = np.abs(np.where(np.isfinite(problem.utility), problem.utility, 1.0))
    enough = Row(name="slots", capacity=6.0, demand=problem.rows[0].demand)
    solution = solve_by_counts(
        Problem(utility=utility, idle=problem.idle, rows=(enough,), current=problem.current)
    )
    assert solution is not None
    assert (solution.chosen >= 0).all()
    short = Row(name="slots", capacity=3.0, demand=problem.rows[0].demand)
    assert (
        solve_by_counts(Problem(utility=utility, idle=problem.idle, rows=(short,), current=problem.current))
        is None
    )


@pytest.mark.parametrize(
    ("demand", "jobs"),
    [(np.array([0.5, 1, 2, 3]), None), (np.array([1.0, 1, 2, np.nan]), None), (np.ones(4), np.ones(4, bool))],
)
def test_leaves_what_it_cannot_count_to_the_solver(demand, jobs) -> None:
    problem = a_problem(1)
    row = Row(name="odd", capacity=5.0, demand=demand, jobs=jobs)
    assert (
        solve_by_counts(
            Problem(utility=problem.utility, idle=problem.idle, rows=(row,), current=problem.current)
        )
        is None
    )


def test_leaves_rows_that_bind_to_the_solver() -> None:
    problem = a_problem(1)
    assert solve_by_counts(problem) is not None
    nothing = Row(name="quota", capacity=0.0, demand=np.ones(4))
    assert solve_by_counts(a_problem(1, rows=(nothing,))) is None


def test_leaves_large_problems_to_the_solver() -> None:
    jobs = 200
    problem = Problem(
        utility=np.ones((jobs, 2)),
        idle=np.zeros(jobs),
        rows=(Row(name="slots", capacity=float(MAX_WORK), demand=np.array([1.0, MAX_WORK / 10])),),
        current=np.full(jobs, -1),
    )
    assert solve_by_counts(problem) is None


@pytest.mark.parametrize("capacity", [np.nan, -3.0, 0.0, np.inf])
def test_every_capacity_has_an_answer(capacity: float) -> None:
    problem = a_problem(5)
    row = Row(name="slots", capacity=capacity, demand=problem.rows[0].demand)
    solution = solve_by_counts(
        Problem(utility=problem.utility, idle=problem.idle, rows=(row,), current=problem.current)
    )
    assert solution is not None
    assert capacity == np.inf or (solution.chosen == -1).all()


def test_no_jobs_and_no_columns() -> None:
    row = Row(name="slots", capacity=4.0, demand=np.zeros(0))
    nobody = Problem(
        utility=np.zeros((0, 0)), idle=np.zeros(0), rows=(row,), current=np.zeros(0, dtype=np.int64)
    )
    assert solve_by_counts(nobody) is not None
    nowhere = Problem(utility=np.zeros((2, 0)), idle=np.zeros(2), rows=(row,), current=np.full(2, -1))
    solution = solve_by_counts(nowhere)
    assert solution is not None
    assert solution.chosen.tolist() == [-1, -1]


def by_counts(**fields: Any) -> list[int]:
    """Choose for two jobs on one or two of three slots; the first one gains more from its second slot."""
    given = {"slots": [1, 2], "capacity": 3, **fields.pop("round", {})}
    round_ = a_round([[1.0, 1.0]] * 2, **given)
    utility = fields.pop("utility", np.array([[1.0, 5.0], [1.0, 3.0]]))
    idle = fields.pop("idle", np.zeros(2))
    choices = solved_by_counts(round_, fields.pop("solve", never), utility, idle, "points", **fields)
    assert choices.utility is utility
    assert choices.idle is idle
    assert choices.unit == "points"
    return choices.chosen.tolist()


def never(problem: Problem) -> Solution:
    raise AssertionError(problem)


def test_one_kind_is_solved_by_counts() -> None:
    assert by_counts() == [1, 0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, [1, -1], id="the best"),
        pytest.param({"must_have": np.array([False, True])}, [-1, 1], id="the second must have slots"),
        pytest.param({"must_have": np.array([True, True])}, [0, 0], id="both must have slots"),
        pytest.param({"must_have": True}, [0, 0], id="all must have slots"),
        pytest.param({"round": {"seats": [-1, 0]}}, [-1, 1], id="a seat is a must"),
        pytest.param({"round": {"seats": [-1, -1]}}, [1, -1], id="nobody has a seat"),
        pytest.param({"round": {"seats": [-1, 0]}, "must_have": np.array([True, False])}, [0, 0], id="both"),
    ],
)
def test_jobs_that_must_have_slots_get_them(fields: dict[str, Any], expected: list[int]) -> None:
    """Two slots: one job has both at most, or each has one."""
    fields = {**fields, "round": {"capacity": 2, **fields.get("round", {})}}
    assert by_counts(**fields, utility=np.array([[-3.0, 5.0], [-3.0, 3.0]])) == expected


def test_a_pool_is_filled_even_at_a_loss() -> None:
    loss = np.array([[-1.0, -5.0], [-2.0, -9.0]])
    assert by_counts(utility=loss) == [-1, -1]
    assert by_counts(utility=loss, fill=True) == [1, 0]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"round": {"kind": [0, 1]}}, id="two kinds"),
        pytest.param({"must_have": True, "round": {"capacity": 1}}, id="nothing is feasible"),
        pytest.param(
            {"round": {"rows": (Row(name="quota", capacity=0.0, demand=np.ones(2)),)}}, id="another row binds"
        ),
    ],
)
def test_the_shared_solver_decides_otherwise(fields: dict[str, Any]) -> None:
    problems: list[Problem] = []

    def solve(problem: Problem) -> Solution:
        problems.append(problem)
        return brute_force(problem)

    by_counts(**fields, solve=solve)
    (problem,) = problems
    assert problem.idle.tolist() == [0.0, 0.0], "the solver has no idle utility of -inf"


@pytest.mark.parametrize(("capacity", "solved"), [(1.0, True), (0.0, False)])
def test_a_row_of_some_jobs_counts_those_alone(capacity: float, solved: bool) -> None:
    """The second job is not counted by the quota."""
    quota = Row(name="quota", capacity=capacity, demand=np.ones(1), jobs=np.array([True, False]))
    slots = Row(name="slots", capacity=2.0, demand=np.ones(1))
    problem = Problem(utility=np.ones((2, 1)), idle=np.zeros(2), rows=(slots, quota), current=np.full(2, -1))
    assert (solve_by_counts(problem) is not None) is solved


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_more_capacity_is_never_worse_and_the_price_is_its_worth(seed: int) -> None:
    problem = a_problem(seed)
    row = problem.rows[0]
    roomier = replace(problem, rows=(replace(row, capacity=row.capacity + 1),))
    here, there = solve_by_counts(problem), solve_by_counts(roomier)
    assert here is not None
    assert there is not None
    assert there.objective >= here.objective
    assert here.prices[0] == pytest.approx(there.objective - here.objective)
