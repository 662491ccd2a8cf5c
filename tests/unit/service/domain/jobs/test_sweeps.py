"""Trials of sweeps: expansion of grids and random spaces, the best trial, and what requests change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from headway.contract.spec import JobSpec
from headway.contract.spec_sweep import Range, Sweep, SweepSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.job import Job
from service.domain.jobs.sweeps import GroupRequest, best_of, combinations, draw, takes, trials_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def random_sweep(trials: int, **parameters: Any) -> Sweep:
    return Sweep.model_validate({"search": "random", "trials": trials, "parameters": parameters})


def numbers(seed: int = 0) -> Any:
    return Random(seed).random


def test_grid_has_every_combination_and_varies_its_last_parameter_fastest() -> None:
    sweep = Sweep.model_validate({"parameters": {"width": [8, 16], "lr": [0.1, "1e-3"]}})
    assert sweep.count == 4
    assert list(combinations(sweep, numbers())) == [
        {"width": 8, "lr": 0.1},
        {"width": 8, "lr": "1e-3"},
        {"width": 16, "lr": 0.1},
        {"width": 16, "lr": "1e-3"},
    ]


def test_random_trials_repeat_for_a_seed_and_more_of_them_begin_alike() -> None:
    space = {"lr": {"min": 1e-5, "max": 0.1, "log": True}, "width": [8, 16]}
    few, many = (list(combinations(random_sweep(n, **space), numbers(7))) for n in (5, 20))
    assert few == many[:5]
    assert list(combinations(random_sweep(5, **space), numbers(8))) != few
    assert len({str(one) for one in many}) == 20


def test_random_trials_of_lists_are_distinct_up_to_all_combinations() -> None:
    found = list(combinations(random_sweep(6, lr=[1, 2, 3], width=[8, 16]), numbers()))
    assert len({tuple(one.values()) for one in found}) == 6


def test_random_trials_beyond_the_whole_numbers_of_a_range_repeat_instead_of_never_ending() -> None:
    found = [one["n"] for one in combinations(random_sweep(4, n={"min": 1, "max": 2}), numbers())]
    assert len(found) == 4
    assert set(found) == {1, 2}


def test_log_range_draws_each_decade_equally_often() -> None:
    space = Range(min=1e-4, max=1.0, log=True)
    drawn = [draw(space, share / 1000) for share in range(1000)]
    assert all(isinstance(one, float) and 1e-4 <= one <= 1 for one in drawn)
    assert [sum(1 for one in drawn if 10.0**-n <= float(one) < 10.0 ** (1 - n)) for n in (4, 3, 2, 1)] == [
        pytest.approx(250, abs=1)
    ] * 4


@pytest.mark.parametrize("log", [False, True])
def test_whole_range_reaches_both_ends_and_nothing_beyond(log: bool) -> None:
    drawn = [draw(Range(min=1, max=4, log=log), share) for share in (0.0, 0.3, 0.999999, 1 - 2**-53)]
    assert drawn[0] == 1
    assert drawn[-1] == 4
    assert {type(one) for one in drawn} == {int}


def test_trial_is_the_job_file_with_its_own_name_and_parameters() -> None:
    spec = SweepSpec.model_validate(
        {
            "name": "gpt",
            "run": "python t.py",
            "parameters": {"depth": 4},
            "elastic": {"min": 1, "max": 4},
            "batch": {"global": 64},
            "sweep": {"parameters": {"lr": [0.1, 0.2]}},
        }
    )
    first, second = trials_of(spec, numbers())
    assert type(first) is JobSpec
    assert (first.name, second.name) == ("gpt-1", "gpt-2")
    assert (first.parameters, second.parameters) == ({"depth": 4, "lr": 0.1}, {"depth": 4, "lr": 0.2})
    assert first.batch.global_ == 64
    assert first.elastic.max == 4


@pytest.mark.parametrize(("goal", "best"), [("minimise", 2), ("maximise", 3)])
def test_best_trial_follows_the_goal_and_equals_go_to_the_lower_number(goal: str, best: int) -> None:
    sweep = Sweep.model_validate({"parameters": {"lr": [1]}, "metric": "loss", "goal": goal})
    assert best_of(sweep, {1: 2.0, 4: 1.0, 2: 1.0, 3: 5.0, 5: 5.0}) == best
    assert best_of(sweep, {}) is None


def test_group_requests_leave_ended_trials_alone_and_resume_only_paused_ones() -> None:
    spec = JobSpec(name="a-1", run="x")
    job = Job(
        id="j1", spec=spec, state=JobState.RUNNING, reason=Reason.SUBMITTED, message="", submitted_at=NOW,
        state_since=NOW,
    )  # fmt: skip
    taken = {
        request: {state for state in JobState if takes(replace(job, state=state), request)}
        for request in GroupRequest
    }
    live = set(JobState) - TERMINAL_STATES
    assert taken[GroupRequest.CANCEL] == live
    assert taken[GroupRequest.PAUSE] == taken[GroupRequest.PRIORITISE] == live - {JobState.CANCELLING}
    assert taken[GroupRequest.RESUME] == {JobState.PAUSED}
    assert takes(replace(job, pause_requested=True), GroupRequest.RESUME)
