"""Tests of Shockwave: rounds one after the other, fairness of finish times, and answers to everything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.policies.framework.checked import problem_of_choices
from service.domain.policies.framework.policy import RoundHistory
from service.domain.policies.shockwave import Shockwave
from tests.unit.service.domain.policies.rounds import a_round, brute_force

NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-300, 1e-3, 1.0, 60.0, 1e6, 1e300])


def history(job_ids: list[str], state: Mapping[str, Any], elapsed_s: float = 60.0) -> RoundHistory:
    return RoundHistory(
        elapsed_s=elapsed_s,
        usd_per_h=0.0,
        job_ids=job_ids,
        classes=job_ids,
        samples=np.full(len(job_ids), np.nan),
        state=state,
    )


def played(rule: Shockwave, work_s: list[float], *, slots: int = 1, submit_s: list[float] | None = None):
    """Return the ends of jobs of one slot, and the number of starts, in rounds of 60 s."""
    submit = np.array(submit_s or [0.0] * len(work_s))
    left, held, starts = np.array(work_s), np.full(len(work_s), -1), 0
    served, ends, state = np.zeros(len(work_s)), np.full(len(work_s), np.inf), {}
    for now_s in np.arange(0.0, 60.0 * 1000, 60.0):
        active = np.flatnonzero((left > 0) & (submit <= now_s))
        if not len(active) and (left <= 0).all():
            break
        given = a_round(
            np.ones((len(active), 1)),
            [1],
            capacity=slots,
            current=held[active],
            remaining=left[active],
            age_s=now_s - submit[active],
            served_s=served[active, None],
        )
        jobs = [str(one) for one in active]
        follows, stored = rule.advance(given, history(jobs, json.loads(json.dumps(state))))
        state = dict(stored)
        chosen = follows.choose(given, brute_force).chosen
        starts += int(((held[active] < 0) & (chosen >= 0)).sum())
        held[active] = chosen
        runs = active[chosen >= 0]
        left[runs] -= 60.0
        served[runs] += 60.0
        ends[runs[left[runs] <= 0]] = now_s + 60.0
        held[left <= 0] = -1
    return ends, starts


def test_by_hand_two_equal_jobs_run_in_turns_of_a_window() -> None:
    """Each gets 10 of 20 rounds of 120 s: 1,200 s in one piece in every window."""
    ends, starts = played(Shockwave(makespan_weight=0.0), [2400.0, 2400.0])
    assert ends.tolist() == [4800.0, 3600.0]
    # One after the other in the first window; in the second one, the running job keeps its slot.
    assert starts == 3


def test_no_job_ends_later_than_on_an_equal_share_if_all_can_be_kept() -> None:
    rng = np.random.default_rng(1)
    work_s = (60 * rng.integers(5, 100, 6)).astype(float)
    ends, _ = played(Shockwave(), work_s.tolist(), slots=2)
    rho = ends / (work_s / (2 / 6))
    assert rho.max() <= 1.0 + 2400 / (work_s / (2 / 6)).min()
    assert np.median(rho) < 1.0


def test_a_greater_weight_of_the_makespan_ends_the_last_job_sooner() -> None:
    work_s = [600.0] * 8 + [9000.0]
    by_makespan, _ = played(Shockwave(makespan_weight=10.0, max_rho=100.0), work_s, slots=2)
    by_progress, _ = played(Shockwave(makespan_weight=0.0, max_rho=100.0), work_s, slots=2)
    assert by_makespan.max() == 9000.0
    assert by_progress.max() > 9000.0
    assert by_progress[:8].mean() < by_makespan[:8].mean()


def test_a_late_job_comes_before_a_newcomer() -> None:
    ends, _ = played(Shockwave(), [6000.0, 6000.0, 600.0], submit_s=[0.0, 0.0, 3000.0])
    assert np.isfinite(ends).all()
    assert max(ends[:2]) <= 12_600.0


def test_the_parameters_reach_the_plan() -> None:
    given = a_round([[1.0]] * 2, [1], capacity=1, remaining=[200.0, 2000.0])
    rule = Shockwave(rounds=4.0, round_s=100.0, makespan_weight=0.0, max_rho=1e6)
    _, state = rule.advance(given, history(["a", "b"], {}))
    assert state["left_s"] == 400.0
    assert {job: one["planned_s"] for job, one in state["jobs"].items()} == {"a": 100.0, "b": 300.0}
    rule = Shockwave(rounds=4.0, round_s=100.0, makespan_weight=0.1, max_rho=1e6)
    _, state = rule.advance(given, history(["a", "b"], {}))
    assert {job: one["planned_s"] for job, one in state["jobs"].items()} == {"a": 0.0, "b": 400.0}
    tight = Shockwave(rounds=4.0, round_s=100.0, makespan_weight=0.1, max_rho=1.0)
    _, state = tight.advance(given, history(["a", "b"], {}))
    assert {job: one["planned_s"] for job, one in state["jobs"].items()} == {"a": 200.0, "b": 200.0}


def test_the_power_of_unfairness_is_a_parameter() -> None:
    given = a_round(
        [[1.0]] * 2, [1], capacity=1, remaining=[1000.0] * 2, age_s=[9000.0, 4000.0], served_s=[[0.0]] * 2
    )
    plans = {}
    for power in (0.0, 12.0):
        rule = Shockwave(rounds=4.0, round_s=100.0, makespan_weight=0.0, unfairness_power=power)
        _, state = rule.advance(given, history(["a", "b"], {}))
        plans[power] = [one["planned_s"] for one in state["jobs"].values()]
    assert plans == {0.0: [200.0, 200.0], 12.0: [400.0, 0.0]}


def test_without_jobs_nothing_is_stored() -> None:
    follows, state = Shockwave().advance(a_round(np.zeros((0, 1)), [1], capacity=1), history([], {}))
    assert state == {}
    assert follows.name == "shockwave"


def test_without_state_it_is_the_first_round_of_a_window() -> None:
    given = a_round([[1.0]] * 3, [1], capacity=1, remaining=[100.0, 9000.0, 500.0])
    rule = Shockwave()
    follows, _ = rule.advance(given, history(["a", "b", "c"], {}))
    expected = follows.choose(given, brute_force).chosen
    assert rule.choose(given, brute_force).chosen.tolist() == expected.tolist()


@pytest.mark.parametrize("capacity", [0.0, 1.0, 3.0])
@drawn(st.data())
@settings(max_examples=20, deadline=None)
def test_nonsense_gives_an_answer_and_a_state_that_json_can_express(
    capacity: float, data: st.DataObject
) -> None:
    def numbers(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array(data.draw(st.lists(NUMBERS, min_size=count, max_size=count))).reshape(shape)

    given = a_round(
        numbers(3, 2),
        [1, 2],
        capacity=capacity,
        current=[data.draw(st.integers(-1, 1)) for _ in range(3)],
        age_s=numbers(3),
        served_s=numbers(3, 1),
        remaining=numbers(3),
        weight=numbers(3),
    )
    rule = Shockwave()
    state: Mapping[str, Any] = {}
    for elapsed_s in (0.0, 60.0, 1e7):
        follows, state = rule.advance(given, history(["a", "b", "c"], state, elapsed_s))
        json.dumps(state, allow_nan=False)
        assert problem_of_choices(given, follows.choose(given, brute_force)) == ""
