"""The policies budget, elastic-dp, idle-fill and ones answer every input, and always alike."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.elastic_dp import ElasticDp
from service.domain.policies.framework.policy import Policy
from service.domain.policies.idle_fill import IdleFill
from service.domain.policies.ones import Ones
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round

POLICIES: list[Policy] = [BudgetPolicy(usd_per_h=3.0), ElasticDp(), IdleFill(), Ones(), Ones(limit_sizes=0.0)]
odd = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-300, 1e300, 1.0, 2.0, 50.0])


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_is_given_there_is_an_answer_within_the_rows(data) -> None:
    jobs, columns = 3, 3

    def some(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array(data.draw(st.lists(odd, min_size=count, max_size=count))).reshape(shape)

    kinds = data.draw(st.sampled_from([1, 2]))
    round_ = a_round(
        some(jobs, columns),
        [1, 2, 4],
        kind=[0, 0, kinds - 1],
        capacity=data.draw(st.sampled_from([0.0, 1.0, 3.0, 100.0])),
        usd_per_h=some(columns),
        allowed=np.array(data.draw(st.lists(st.booleans(), min_size=9, max_size=9))).reshape(jobs, columns),
        current=np.array(data.draw(st.lists(st.integers(-1, 2), min_size=jobs, max_size=jobs))),
        weight=some(jobs),
        change_s=some(jobs),
        stop_s=some(jobs),
        remaining=some(jobs),
        served_slot_s=some(jobs),
        requested_slots=np.array(data.draw(st.lists(st.integers(0, 5), min_size=jobs, max_size=jobs))),
    )
    for policy in POLICIES:
        choices = policy.choose(round_, brute_force)
        assert is_feasible(round_.rows, choices.chosen[None]).all()
        holds = np.flatnonzero(choices.chosen >= 0)
        assert round_.allowed[holds, choices.chosen[holds]].all()
        assert (round_.goodput[holds, choices.chosen[holds]] > 0).all()
        assert choices.solution.bound >= choices.solution.objective
        again = policy.choose(round_, brute_force)
        assert again.chosen.tolist() == choices.chosen.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_the_shared_solver_finds_what_trying_everything_finds(seed: int) -> None:
    cap = Row(name="usd_per_h", capacity=9.0, demand=np.array([1.0, 2, 2, 4]))
    round_ = random_round(seed, kinds=2, sizes=2, capacity=3, rows=[cap])
    for policy in POLICIES:
        exact, found = (policy.choose(round_, one).solution for one in (brute_force, partial(solve, gap=0.0)))
        assert found.objective == pytest.approx(exact.objective)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_round_without_jobs_or_without_configurations(policy) -> None:
    assert policy.choose(a_round(np.zeros((0, 2)), [1, 2], capacity=1), brute_force).chosen.tolist() == []
    assert policy.choose(a_round(np.zeros((2, 0)), [], capacity=1), brute_force).chosen.tolist() == [-1, -1]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_of_equal_jobs_as_many_run_as_there_is_room_for(policy) -> None:
    crowd = a_round(np.full((6, 1), 10.0), [2], capacity=7, remaining=np.full(6, 100.0))
    assert (policy.choose(crowd, brute_force).chosen == 0).sum() == 3
