"""Jobs that a waiting job may stop, and the restart of a job that was stopped for others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from headway.contract.run_facts import ImposedChange
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.knapsack.solver import solve
from service.domain.contention.guaranteed_jobs import guaranteed_jobs_of
from service.domain.contention.rate import rests_s
from service.domain.policies.framework.policy import FinishedJobs
from tests.unit.service.builders import NOW
from tests.unit.service.domain.contention.scenes import Rival, Scene, running, waiting

ONE = {"sizes": (1,)}


def firm(*rivals: Rival) -> list[bool]:
    return list(Scene(rivals=rivals).seats.firm.tolist())


def barred(*rivals: Rival) -> list[bool]:
    return list(Scene(rivals=rivals).seats.barred.tolist())


def test_the_lowest_job_loses_its_slots_although_a_higher_one_is_past_its_minimum_run_time() -> None:
    """The newcomer was submitted after the turn of the lowest job began."""
    pair = running(2, sizes=(2,), priority=50, run_s=600.0)
    tail = running(1, **ONE, priority=10, run_s=30.0)
    busy = running(1, **ONE, priority=90, run_s=30.0)
    newcomer = waiting(**ONE, priority=80, age_s=0.0)
    scene = Scene(rivals=(pair, tail, busy, newcomer))
    assert scene.seats.firm.tolist() == [False, False, True, False]
    assert scene.sizes_of(scene.seats.columns) == [2, 0, 1, 1]


def test_the_smallest_of_the_lowest_jobs_makes_room_where_it_suffices() -> None:
    pair = running(2, sizes=(2,), priority=10, run_s=30.0)
    first, second = (running(1, **ONE, priority=10, run_s=30.0) for _ in range(2))
    assert firm(pair, first, second, waiting(**ONE, priority=50, age_s=0.0))[0]
    assert sum(firm(pair, first, second, waiting(**ONE, priority=50, age_s=0.0))) == 2
    assert firm(pair, first, second, waiting(sizes=(2,), priority=50, age_s=0.0)) == [
        False,
        True,
        True,
        False,
    ]


def test_a_protected_job_keeps_its_protection_where_unprotected_lower_ones_make_room() -> None:
    lowest = running(1, **ONE, priority=10, run_s=600.0)
    others = [running(1, **ONE, priority=30, run_s=30.0)] * 3
    assert firm(lowest, *others, waiting(**ONE, priority=80, age_s=0.0)) == [False, True, True, True, False]


@pytest.mark.parametrize(("remaining", "stops"), [(200.0, False), (400.0, True)])
def test_waiting_job_that_soon_has_slots_of_an_ending_job_stops_none(remaining: float, stops: bool) -> None:
    """At 100 samples/s the ending job has 2 s or 4 s to go, and a stop costs 3 s."""
    ending = running(1, **ONE, priority=80, remaining=remaining)
    others = [running(1, **ONE, priority=10)] * 3
    newcomer = waiting(**ONE, priority=80, age_s=0.0)
    assert barred(ending, *others, newcomer)[4] is not stops


@pytest.mark.parametrize(("left_s", "stops"), [(2.0, False), (4.0, True)])
def test_running_job_that_reports_a_near_end_is_not_stopped(left_s: float, stops: bool) -> None:
    """Its speed is not measured yet, so its reports alone tell."""
    ending = running(1, **ONE, priority=80, reported_left_s=left_s)
    others = [running(1, **ONE, priority=10)] * 3
    newcomer = waiting(**ONE, priority=80, age_s=0.0)
    assert barred(ending, *others, newcomer)[4] is not stops


def test_a_second_waiting_job_may_stop_one_where_the_ending_job_leaves_room_for_the_first() -> None:
    ending = running(1, **ONE, priority=80, remaining=100.0)
    others = [running(1, **ONE, priority=10)] * 3
    newcomers = [waiting(**ONE, priority=80, age_s=0.0)] * 2
    assert barred(ending, *others, *newcomers)[4:] == [True, False]


def test_a_job_that_was_just_stopped_rests_unless_a_lower_priority_would_take_its_place() -> None:
    busy = running(2, sizes=(2,), priority=90)
    wide = waiting(sizes=(4,), priority=90)
    stopped = waiting(**ONE, priority=50, rests_s=30.0)
    assert barred(busy, wide, stopped)[2]
    assert not barred(busy, wide, replace(stopped, rests_s=0.0))[2]
    assert not barred(busy, wide, stopped, waiting(**ONE, priority=10))[2]
    assert barred(busy, wide, stopped, waiting(**ONE, priority=50))[2:] == [True, False]


def test_a_job_that_was_just_stopped_starts_at_once_while_all_minimums_fit() -> None:
    seats = Scene(rivals=(running(2, priority=90), waiting(**ONE, rests_s=30.0))).seats
    assert (seats.columns[1] >= 0, bool(seats.barred[1])) == (True, False)


@pytest.mark.parametrize(
    ("ago_s", "rest_s"), [((), 0.0), ((10.0,), 50.0), ((70.0,), 0.0), ((300.0, 70.0), 50.0)]
)
def test_a_rest_lasts_a_minute_and_twice_as_long_after_each_further_stop(
    ago_s: tuple[float, ...], rest_s: float
) -> None:
    imposed = [ImposedChange(at=NOW - timedelta(seconds=one), cost_s=3.0, stopped=True) for one in ago_s]
    assert rests_s(JobProgress(imposed=imposed), NOW) == pytest.approx(rest_s)


def test_change_of_size_is_no_reason_to_rest() -> None:
    grew = ImposedChange(at=NOW - timedelta(seconds=5), cost_s=3.0)
    stopped = ImposedChange(at=NOW - timedelta(seconds=20), cost_s=3.0, stopped=True)
    assert [rests_s(JobProgress(imposed=one), NOW) for one in ([grew], [stopped, grew])] == [0.0, 40.0]


def test_a_rest_is_at_most_as_long_as_the_window_of_changes() -> None:
    imposed = [ImposedChange(at=NOW, cost_s=3.0, stopped=True)] * 40
    assert rests_s(JobProgress(imposed=imposed), NOW) == 600.0


@pytest.mark.parametrize(
    ("run_s", "stops"),
    [
        ((0.2, 1.0, 0.5), False),
        ((0.2, 1.0), True),
        ((0.2, 90.0, 0.2), True),
        ((0.2, 0.0, 0.2), True),
        ((), True),
    ],
)
def test_waiting_job_of_a_class_shorter_than_a_stop_stops_none(run_s: tuple[float, ...], stops: bool) -> None:
    scene = Scene(rivals=[running(1, **ONE, priority=10)] * 4 + [waiting(**ONE, priority=80, age_s=0.0)])
    ended = FinishedJobs(
        job_class=np.full(len(run_s), 4), work=np.zeros(len(run_s)), run_s=np.array(run_s, dtype=np.float64)
    )
    given = replace(scene.given, finished=ended)
    nobody = np.zeros(5, dtype=np.bool_)
    seats = guaranteed_jobs_of(given, scene.tenure, solve, nobody)
    assert bool(seats.barred[4]) is not stops


@pytest.mark.parametrize(("work_s", "stops"), [(10.0, False), (40.0, True)])
@pytest.mark.parametrize("first_s", [3.0, 300.0])
def test_the_cost_of_a_stop_is_that_of_the_job_that_would_be_stopped(
    first_s: float, work_s: float, stops: bool
) -> None:
    """The higher priority is not stopped for the newcomer, so the cost of its restart does not count."""
    higher = running(1, **ONE, priority=90, restart_s=first_s)
    lower = [running(1, **ONE, priority=10, restart_s=30.0)] * 3
    newcomer = waiting(**ONE, priority=80, age_s=0.0, remaining=100.0 * work_s)
    assert barred(higher, *lower, newcomer)[4] is not stops


@pytest.mark.parametrize(("left_s", "stops"), [(20.0, False), (40.0, True)])
def test_a_job_waits_for_an_ending_one_as_long_as_the_stop_of_another_would_cost(
    left_s: float, stops: bool
) -> None:
    ending = running(1, **ONE, priority=90, restart_s=3.0, reported_left_s=left_s)
    lower = [running(1, **ONE, priority=10, restart_s=30.0)] * 3
    assert barred(ending, *lower, waiting(**ONE, priority=80, age_s=0.0))[4] is not stops


@pytest.mark.parametrize(("work_s", "stops"), [(50.0, False), (70.0, True)])
def test_two_stops_for_a_job_cost_what_both_lose(work_s: float, stops: bool) -> None:
    lower = [running(1, **ONE, priority=10, restart_s=30.0)] * 4
    newcomer = waiting(sizes=(2,), priority=80, age_s=0.0, remaining=100.0 * 2**0.9 * work_s)
    assert barred(*lower, newcomer)[4] is not stops
