"""No policy may be quadratic in jobs: twice the jobs take about twice the memory and twice the calls."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Problem, Solution
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.domain.policies.rounds import random_round

JOBS = 3_000
"""Enough that no policy takes a way that is meant for few jobs."""
MOST = 2.6
"""Twice the jobs: 2 is linear, 4 is quadratic; n log n and constant parts lie between."""


def keep_all(problem: Problem) -> Solution:
    """A solver that costs nothing: what is measured is the policy's own work."""
    return Solution(
        chosen=problem.current, objective=0.0, bound=0.0, prices=np.zeros(len(problem.rows)), status="limit"
    )


def crowd(jobs: int) -> RoundInput:
    """Jobs of which a third has an unknown length, on half as many slots."""
    rng = np.random.default_rng(jobs)
    return random_round(
        jobs,
        jobs=jobs,
        sizes=3,
        capacity=jobs // 2,
        remaining=np.where(rng.random(jobs) < 0.7, rng.uniform(1e3, 1e6, jobs), np.nan),
        served_s=rng.uniform(0, 1e5, (jobs, 1)),
        age_s=rng.uniform(1e5, 2e5, jobs),
    )


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def calls(work: Callable[[], object]) -> int:
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("measure", [peak_bytes, calls])
def test_twice_the_jobs_take_about_twice_as_much(name: str, measure) -> None:
    once, twice = crowd(JOBS), crowd(2 * JOBS)
    took = measure(lambda: policy(name).choose(once, keep_all))
    assert measure(lambda: policy(name).choose(twice, keep_all)) < MOST * took
