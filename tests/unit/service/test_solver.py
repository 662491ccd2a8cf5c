"""The solver against every possible choice, and when it runs out of time."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.problem import Configuration, Problem, Solution
from service.domain.allocation.solver import solve

KINDS = ("a", "b")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to four jobs with up to four configurations each; small integers make ties likely."""
    rows = st.builds(
        Configuration,
        device_kind=st.sampled_from(KINDS),
        slots=st.integers(1, 4),
        demand=st.integers(0, 4),
        utility=st.one_of(st.integers(-2, 4).map(float), st.floats(-2, 4)),
    )
    jobs = [f"j{index}" for index in range(draw(st.integers(0, 4)))]
    return Problem(
        configurations={job: tuple(draw(st.lists(rows, max_size=4))) for job in jobs},
        capacity={kind: draw(st.integers(0, 6)) for kind in KINDS},
        idle_utility={job: draw(st.sampled_from([0.0, -1.5])) for job in jobs},
    )


def fits(problem: Problem, chosen: dict[str, Configuration | None]) -> bool:
    return all(
        sum(row.demand for row in chosen.values() if row is not None and row.device_kind == kind) <= capacity
        for kind, capacity in problem.capacity.items()
    )


def value(problem: Problem, chosen: dict[str, Configuration | None]) -> float:
    return sum(
        problem.idle_utility.get(job, 0.0) if row is None else row.utility for job, row in chosen.items()
    )


def best_of_all(problem: Problem) -> float:
    jobs = list(problem.configurations)
    every = itertools.product(*((None, *problem.configurations[job]) for job in jobs))
    candidates = (dict(zip(jobs, rows, strict=True)) for rows in every)
    return max(value(problem, chosen) for chosen in candidates if fits(problem, chosen))


def check_feasible(problem: Problem, solution: Solution) -> None:
    chosen = dict(solution.chosen)
    assert set(chosen) == set(problem.configurations)
    assert all(row is None or row in problem.configurations[job] for job, row in chosen.items())
    assert fits(problem, chosen)
    assert solution.objective == pytest.approx(value(problem, chosen), abs=1e-5)
    assert solution.bound >= solution.objective - 1e-5


@given(problems())
@settings(max_examples=100)
def test_the_choice_is_the_best_of_all(problem: Problem) -> None:
    solution = solve(problem, time_limit_s=2.0)
    check_feasible(problem, solution)
    assert solution.status == "OPTIMAL"
    assert solution.objective == pytest.approx(best_of_all(problem), abs=1e-5)
    assert solution.gap == pytest.approx(0.0, abs=1e-5)


@given(problems())
@settings(max_examples=40)
def test_without_time_the_choice_still_fits_and_its_gap_is_true(problem: Problem) -> None:
    solution = solve(problem, time_limit_s=0.0)
    check_feasible(problem, solution)
    assert solution.bound >= best_of_all(problem) - 1e-5
    idle = dict.fromkeys(problem.configurations)
    assert solution.objective >= value(problem, idle) - 1e-9


@given(problems(), st.randoms())
@settings(max_examples=30)
def test_the_order_in_which_jobs_are_given_does_not_matter(problem: Problem, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(problem.configurations.items())
    random.shuffle(shuffled)
    again = Problem(dict(shuffled), problem.capacity, problem.idle_utility)
    assert dict(solve(again, time_limit_s=2.0).chosen) == dict(solve(problem, time_limit_s=2.0).chosen)


def sized(sizes: range | tuple[int, ...], weight: float = 1.0) -> tuple[Configuration, ...]:
    return tuple(
        Configuration(device_kind="a", slots=size, demand=size, utility=weight * math.log1p(size**0.9))
        for size in sizes
    )


def test_ten_thousand_identical_jobs_share_eight_slots() -> None:
    problem = Problem({f"j{index:05}": sized((1, 2, 4, 8)) for index in range(10_000)}, {"a": 8}, {})
    solution = solve(problem, time_limit_s=2.0)
    assert solution.status == "OPTIMAL"
    assert solution.objective == pytest.approx(8 * math.log(2), abs=1e-4)
    assert sum(row is not None for row in solution.chosen.values()) == 8


def test_a_long_queue_of_different_jobs_is_served_by_weight() -> None:
    weights = {f"j{index:05}": 1 + (index * 7919 % 5000) / 5000 for index in range(5_000)}
    problem = Problem({job: sized((1, 2, 4), weight) for job, weight in weights.items()}, {"a": 16}, {})
    solution = solve(problem, time_limit_s=2.0)
    assert solution.status == "OPTIMAL"
    served = sorted((weights[job] for job, row in solution.chosen.items() if row is not None), reverse=True)
    assert served == sorted(weights.values(), reverse=True)[: len(served)]


def test_running_jobs_are_not_emptied_out_when_time_runs_out() -> None:
    rows = {f"j{index}": sized(range(1, 9)) for index in range(20)}
    problem = Problem(rows, {"a": 20}, dict.fromkeys(rows, -1.5))
    solution = solve(problem, time_limit_s=0.0)
    assert None not in solution.chosen.values()
    assert 0 < solution.gap < 1


@pytest.mark.parametrize("capacity", [{"a": 0}, {}])
def test_without_capacity_nobody_gets_anything(capacity: dict[str, int]) -> None:
    solution = solve(Problem({"j": sized((1, 2))}, capacity, {"j": -1.5}), time_limit_s=2.0)
    assert dict(solution.chosen) == {"j": None}
    assert solution.objective == solution.bound == -1.5


def test_a_row_without_demand_needs_no_capacity() -> None:
    """Slots that only this job can use: held on a cordoned node."""
    own = Configuration(device_kind="a", slots=2, demand=0, utility=1.0)
    assert solve(Problem({"j": (own,)}, {"a": 0}, {}), time_limit_s=2.0).chosen["j"] == own


def test_one_jobs_many_choices_do_not_hide_anothers() -> None:
    """Found by search: rows of one job filled the places that pruning keeps for the best jobs."""
    held = Configuration(device_kind="a", slots=1, demand=0, utility=0.0)
    moving = [Configuration(device_kind="b", slots=slots, demand=1, utility=0.0) for slots in (1, 2)]
    other = Configuration(device_kind="b", slots=1, demand=1, utility=1.0)
    problem = Problem({"j1": (held, *moving), "j2": (other,)}, {"a": 0, "b": 1}, {"j1": -1.5})
    assert dict(solve(problem, time_limit_s=2.0).chosen) == {"j1": held, "j2": other}


def test_no_jobs() -> None:
    solution = solve(Problem({}, {"a": 3}, {}), time_limit_s=2.0)
    assert (dict(solution.chosen), solution.objective, solution.gap) == ({}, 0.0, 0.0)
