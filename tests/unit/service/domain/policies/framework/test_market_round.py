"""Tests of the rounds of a window: targets over time, when a window is planned anew, and the order of a round."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.domain.policies.framework.market import MarketRules
from service.domain.policies.framework.market_round import (
    MarketRound,
    MarketWindow,
    PlannedJob,
    buyers_of,
    next_window,
)
from tests.unit.service.domain.policies.rounds import a_round, brute_force

RULES = MarketRules(rounds=4, round_s=100.0, makespan_weight=0.0, unfairness_power=2.0, max_rho=1.0)


def one_slot_jobs(*remaining: float, **fields: Any):
    """A round of jobs with a sample per second on their only slot; one slot in all."""
    fields = {"capacity": 1, "remaining": list(remaining), **fields}
    return a_round([[1.0]] * len(remaining), [1], **fields)


def test_the_fair_time_is_the_mean_of_the_past_and_a_tenth_of_the_latest() -> None:
    """By hand: 1,000 s for 300 s, then 2,000 s for 100 s; the mean is 1,250 s."""
    job = PlannedJob().with_target(1000.0)
    assert job.fair_s == 1000.0, "without a past, the latest"
    job = job.after(300.0, ran=False).with_target(2000.0).after(100.0, ran=True)
    assert job.fair_s == pytest.approx(0.9 * 1250 + 0.1 * 2000)
    assert job.with_target(3000.0).fair_s == pytest.approx(0.9 * 1250 + 0.1 * 3000)


def test_only_seconds_with_slots_are_taken_from_the_plan() -> None:
    job = PlannedJob(planned_s=150.0)
    assert job.after(60.0, ran=False).planned_s == 150.0
    assert job.after(60.0, ran=True).planned_s == 90.0
    assert job.after(200.0, ran=True).planned_s == 0.0


def test_jobs_are_read_from_the_round_at_their_requested_sizes() -> None:
    given = a_round(
        [[10.0, 15.0, 30.0], [0.0, 20.0, 40.0], [0.0, 0.0, 0.0]],
        [1, 2, 4],
        capacity=6,
        requested_slots=[2, 1, 1],
        remaining=[300.0, np.nan, 50.0],
        age_s=[500.0, 900.0, 7.0],
        served_s=[[100.0], [800.0], [0.0]],
        weight=[2.0, 1.0, 1.0],
    )
    who = buyers_of(given)
    assert (who.capacity, who.share) == (6.0, 1.0)
    assert who.slots.tolist() == [2.0, 2.0, 0.0]
    assert who.remaining_s.tolist() == [20.0, 800.0, np.inf], "unknown: as far ahead as behind"
    assert who.elapsed_s.tolist() == [100.0, 800.0, 0.0]
    assert who.target_s.tolist() == [120.0, 1600.0, 0.0]
    assert who.age_s.tolist() == [500.0, 900.0, 7.0]
    assert who.weight.tolist() == [2.0, 1.0, 1.0]


def test_a_job_that_may_have_nothing_now_is_planned_all_the_same() -> None:
    goodput = [[10.0, 20.0], [10.0, 20.0]]
    given = a_round(
        goodput,
        [1, 2],
        capacity=2,
        requested_slots=[2, 2],
        remaining=[400.0, 400.0],
        allowed=np.array([[False, False], [True, False]]),
    )
    who = buyers_of(given)
    assert who.slots.tolist() == [2.0, 1.0]
    assert who.remaining_s.tolist() == [20.0, 40.0]
    assert planned(next_window(MarketWindow(), given, ["a", "b"], 0.0, RULES)) == {"a": 100.0, "b": 100.0}


def test_targets_are_on_an_equal_share() -> None:
    who = buyers_of(one_slot_jobs(100.0, 50.0, served_s=[[20.0], [0.0]]))
    assert (who.share, who.target_s.tolist()) == (0.5, [240.0, 100.0])
    assert who.age_s.tolist() == [20.0, 0.0], "no job ran longer than it exists"


def test_a_young_job_of_unknown_length_has_ten_minutes_ahead() -> None:
    assert buyers_of(one_slot_jobs(np.nan)).remaining_s.tolist() == [600.0]


def planned(window: MarketWindow) -> dict[str, float]:
    return {job: one.planned_s for job, one in window.jobs.items()}


def test_a_first_window_has_a_plan_and_targets() -> None:
    window = next_window(MarketWindow(), one_slot_jobs(1000.0, 1000.0), ["a", "b"], 0.0, RULES)
    assert window.left_s == 400.0
    assert planned(window) == {"a": 200.0, "b": 200.0}
    assert [one.target_s for one in window.jobs.values()] == [2000.0, 2000.0]
    assert [one.priority for one in window.jobs.values()] == [2.0, 2.0]


def test_a_window_goes_on_while_the_jobs_stay() -> None:
    jobs = ["a", "b"]
    first = next_window(MarketWindow(), one_slot_jobs(1000.0, 1000.0), jobs, 0.0, RULES)
    # Half of the work of the second job is suddenly done: the plan stays.
    later = next_window(first, one_slot_jobs(940.0, 500.0, current=[0, -1]), jobs, 60.0, RULES)
    assert later.left_s == 340.0
    assert planned(later) == {"a": 140.0, "b": 200.0}
    assert [one.target_s for one in later.jobs.values()] == [2000.0, 2000.0]
    assert [one.held_s for one in later.jobs.values()] == [60.0, 60.0]


@pytest.mark.parametrize(
    ("jobs", "elapsed_s"), [(["a", "b", "c"], 60.0), (["a"], 60.0), (["a", "c"], 60.0), (["a", "b"], 400.0)]
)
def test_a_window_is_planned_anew_when_a_job_comes_or_goes_and_at_its_end(
    jobs: list[str], elapsed_s: float
) -> None:
    first = next_window(MarketWindow(), one_slot_jobs(1000.0, 1000.0), ["a", "b"], 0.0, RULES)
    current = [0, *[-1] * (len(jobs) - 1)]
    given = one_slot_jobs(*[900.0] * len(jobs), current=current, served_s=[[100.0]] * len(jobs))
    window = next_window(first, given, jobs, elapsed_s, RULES)
    assert window.left_s == 400.0
    assert sum(planned(window).values()) == 400.0
    assert list(window.jobs) == jobs
    assert {one.target_s for one in window.jobs.values()} == {1000.0 * len(jobs)}
    assert window.jobs["a"].held_s == elapsed_s


def test_a_newcomer_has_no_past() -> None:
    first = next_window(MarketWindow(), one_slot_jobs(1000.0), ["a"], 0.0, RULES)
    window = next_window(first, one_slot_jobs(900.0, 900.0), ["a", "b"], 60.0, RULES)
    assert (window.jobs["a"].held_s, window.jobs["b"].held_s) == (60.0, 0.0)
    # 0.9 * 1,000 s, its target while it was alone, and 0.1 * 1,800 s.
    assert window.jobs["a"].fair_s == pytest.approx(1080.0)
    assert window.jobs["b"].fair_s == pytest.approx(1800.0)


def test_the_plan_follows_the_mean_of_the_targets() -> None:
    """The first job was promised 1,000 s, the second comes with 1,800 s: by the mean the first is urgent."""
    first = next_window(MarketWindow(), one_slot_jobs(1000.0), ["a"], 0.0, RULES)
    window = next_window(
        first,
        one_slot_jobs(900.0, 900.0, age_s=[60.0, 0.0]),
        ["a", "b"],
        60.0,
        replace(RULES, unfairness_power=12.0),
    )
    assert planned(window) == {"a": 400.0, "b": 0.0}
    equal = next_window(MarketWindow(), one_slot_jobs(900.0, 900.0), ["a", "b"], 60.0, RULES)
    assert planned(equal) == {"a": 200.0, "b": 200.0}


def test_the_state_survives_json_and_unknown_fields() -> None:
    window = next_window(MarketWindow(), one_slot_jobs(1000.0, 300.0), ["a", "b"], 0.0, RULES)
    stored = json.loads(json.dumps(window.to_json(), allow_nan=False))
    assert MarketWindow.from_json(stored) == window
    stored["jobs"]["a"]["of another version"] = 1
    del stored["jobs"]["b"]["priority"]
    read = MarketWindow.from_json(stored)
    assert read.jobs["a"] == window.jobs["a"]
    assert read.jobs["b"] == replace(window.jobs["b"], priority=0.0)
    assert MarketWindow.from_json({}) == MarketWindow()


def order(given, planned_s: list[float], priority: list[float], left_s: float = 400.0) -> list[int]:
    """Return the jobs that run."""
    rule = MarketRound(
        name="market",
        left_s=left_s,
        planned_s=np.array(planned_s),
        priority=np.array(priority),
    )
    return np.flatnonzero(rule.choose(given, brute_force).chosen >= 0).tolist()


@pytest.mark.parametrize(
    ("planned_s", "priority", "current", "expected"),
    [
        pytest.param([100.0, 200.0, 0.0], [1.0, 2.0, 9.0], [-1, -1, -1], [1], id="priority"),
        pytest.param([100.0, 200.0, 0.0], [2.0, 1.0, 9.0], [-1, -1, -1], [0], id="other priority"),
        pytest.param([100.0, 200.0, 0.0], [1.0, 2.0, 0.0], [0, -1, -1], [0], id="the running one stays"),
        pytest.param([100.0, 400.0, 0.0], [9.0, 3.0, 0.0], [0, -1, -1], [1], id="needs all the rest"),
        pytest.param([100.0, 399.0, 0.0], [9.0, 3.0, 0.0], [0, -1, -1], [0], id="a second of slack"),
        pytest.param([0.0, 10.0, 0.0], [9.0, 1.0, 0.0], [0, -1, -1], [1], id="no longer in the plan"),
        pytest.param([0.0, 0.0, 0.0], [9.0, 1.0, 0.0], [-1, -1, -1], [2], id="the longest of the others"),
        pytest.param([5.0, 5.0, 5.0], [1.0, 1.0, 1.0], [-1, -1, -1], [0], id="by submission"),
    ],
)
def test_the_order_of_a_round(
    planned_s: list[float], priority: list[float], current: list[int], expected: list[int]
) -> None:
    given = one_slot_jobs(100.0, 200.0, 300.0, current=current)
    assert order(given, planned_s, priority) == expected


def test_slots_that_are_left_go_to_the_longest() -> None:
    given = one_slot_jobs(100.0, 200.0, 300.0, np.nan, capacity=2)
    assert order(given, [10.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]) == [0, 3]
    assert order(one_slot_jobs(100.0, 200.0, 300.0, capacity=2), [10.0, 0.0, 0.0], [1.0, 0.0, 0.0]) == [0, 2]
