"""Tests of the step from utilities to choices by the solver that a policy is given."""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import Problem, Solution
from service.domain.policies.framework.solving import solved
from tests.unit.service.domain.policies.rounds import a_round, brute_force


def test_the_solver_gets_the_round_and_its_solution_is_returned() -> None:
    round_ = a_round([[1.0, 2.0]] * 2, [1, 2], capacity=3, current=[1, -1])
    utility, idle = np.array([[1.0, 4.5], [2.0, 6.0]]), np.array([0.0, -1.0])
    problems: list[Problem] = []

    def solve(problem: Problem) -> Solution:
        problems.append(problem)
        return brute_force(problem)

    choices = solved(round_, solve, utility, idle, "points")
    (problem,) = problems
    assert problem.rows is round_.rows
    assert problem.current is round_.current
    assert choices.chosen.tolist() == [0, 1]
    assert choices.solution.objective == 7.0
    assert choices.utility is utility
    assert choices.idle is idle
    assert choices.unit == "points"


def test_a_solver_may_leave_every_job_without_slots() -> None:
    round_ = a_round([[1.0]], [1], capacity=0)
    choices = solved(round_, brute_force, np.array([[9.0]]), np.array([-3.0]), "points")
    assert choices.chosen.tolist() == [-1]
    assert choices.solution.objective == -3.0
