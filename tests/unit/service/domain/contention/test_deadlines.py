"""Deadlines as a rule: the configurations that guaranteed jobs may have, and what the other rules leave them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.contention.deadline_plan import PlannedRun
from service.domain.contention.deadlines import MARGIN, with_deadlines
from service.domain.policies.goodput import Goodput
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.domain.contention.scenes import Scene, running, waiting

LATE_S = {1: 100.0, 2: 50.0, 4: 25.0}
"""P90 seconds of a job with 10,000 samples left and linear speed, by size."""


def due(left_s: float, holds: int = 0, **fields: object) -> dict[str, object]:
    return {"left_s": left_s, "remaining": 10_000.0, "scaling": 1.0, "change_s": 0.0, **fields}


def sizes_left(scene: Scene, row: int = 0) -> list[int]:
    """The sizes that the rule leaves a job."""
    return scene.slots[with_deadlines(scene.given, scene.deadlines, scene.tenure).given.allowed[row]].tolist()


def chosen(scene: Scene, name: str = "goodput") -> list[int]:
    contest = scene.contest
    return scene.sizes_of(policy(name).choose(contest.given, contest.solver(solve)).chosen)


def test_without_deadlines_nothing_changes() -> None:
    scene = Scene(rivals=[running(2), waiting()])
    for deadlines in (None, scene.deadlines):
        rule = with_deadlines(scene.given, deadlines, scene.tenure)
        assert rule.given is scene.given
        assert not rule.due.any()
        assert not rule.too_late.any()
        assert rule.plan.met == {}


@pytest.mark.parametrize(("left_s", "sizes"), [(100, [1, 2, 4]), (99, [2, 4]), (50, [2, 4]), (49, [4])])
def test_a_guaranteed_job_has_only_sizes_that_are_in_time(left_s: float, sizes: list[int]) -> None:
    scene = Scene(rivals=[waiting(**due(left_s))])
    rule = with_deadlines(scene.given, scene.deadlines, scene.tenure)
    assert scene.slots[rule.given.allowed[0]].tolist() == sizes
    assert scene.slots[rule.too_late[0]].tolist() == [one for one in scene.sizes if one not in sizes]
    assert rule.due.tolist() == [True]


def test_a_missed_deadline_limits_nothing() -> None:
    scene = Scene(rivals=[waiting(**due(24))])
    assert sizes_left(scene) == [1, 2, 4]
    assert not with_deadlines(scene.given, scene.deadlines, scene.tenure).due.any()


def test_a_start_in_the_future_limits_nothing_now() -> None:
    scene = Scene(rivals=[running(4, sizes=(4,), remaining=4_000.0, scaling=1.0), waiting(**due(200))])
    rule = with_deadlines(scene.given, scene.deadlines, scene.tenure)
    assert rule.plan.met[1] == PlannedRun(10.0, 110.0, 0)
    assert (rule.due.tolist(), sizes_left(scene, 1)) == ([False, False], [1, 2, 4])


def test_a_search_that_visits_sizes_is_left_alone() -> None:
    scene = Scene(rivals=[waiting(**due(50, visiting=True))])
    rule = with_deadlines(scene.given, scene.deadlines, scene.tenure)
    assert (rule.due.tolist(), sizes_left(scene)) == ([False], [1, 2, 4])
    assert 0 in rule.plan.met


@pytest.mark.parametrize(
    ("left_s", "sizes"),
    [
        (100 * MARGIN + 0.1, [1, 2, 4]),
        (100 * MARGIN - 0.1, [2, 4]),
        (100.1, [2, 4]),
        (50 * MARGIN + 0.1, [2, 4]),
        (50 * MARGIN - 0.1, [4]),
        (25.1, [4]),
    ],
)
def test_a_running_job_shrinks_only_with_a_margin(left_s: float, sizes: list[int]) -> None:
    assert sizes_left(Scene(rivals=[running(4, **due(left_s))])) == sizes


@pytest.mark.parametrize(("left_s", "sizes"), [(50.1, [2, 4]), (49.9, [4])])
def test_a_running_job_keeps_its_size_without_a_margin(left_s: float, sizes: list[int]) -> None:
    assert sizes_left(Scene(rivals=[running(2, **due(left_s))])) == sizes


def test_a_job_that_may_not_grow_yet_gets_its_fastest_size_on_the_way() -> None:
    scene = Scene(rivals=[running(1, **due(30))])
    may = scene.deadlines.may & (scene.slots <= 2)
    rule = with_deadlines(scene.given, replace(scene.deadlines, may=may), scene.tenure)
    assert scene.slots[rule.given.allowed[0]].tolist() == [2]
    assert rule.plan.met[0].column == scene.column(4)
    nothing = with_deadlines(scene.given, replace(scene.deadlines, may=np.zeros_like(may)), scene.tenure)
    assert nothing.given.allowed[0].all()
    assert not nothing.due.any()


def test_a_larger_size_than_planned_is_not_on_the_way() -> None:
    scene = Scene(rivals=[running(1, **due(55))])
    may = scene.deadlines.may & (scene.slots != 2)
    late_s = scene.deadlines.late_s.copy()
    late_s[0, scene.column(4)] = 60.0
    rule = with_deadlines(scene.given, replace(scene.deadlines, may=may, late_s=late_s), scene.tenure)
    assert scene.slots[rule.given.allowed[0]].tolist() == [1]


def test_the_requested_size_is_the_guaranteed_one_and_others_shrink_if_they_must() -> None:
    scene = Scene(rivals=[waiting(**due(50)), running(2)])
    given = replace(scene.given, requested_slots=np.array([1, 2]))
    assert with_deadlines(given, scene.deadlines, scene.tenure).given.requested_slots.tolist() == [2, 2]
    given = replace(scene.given, requested_slots=np.array([4, 3]))
    assert with_deadlines(given, scene.deadlines, scene.tenure).given.requested_slots.tolist() == [2, 1]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_a_deadline(name: str) -> None:
    scene = Scene(rivals=[running(4), running(2, **due(25))], capacity=(6,))
    sizes = chosen(scene, name)
    assert sizes[1] == 4
    assert sizes[0] >= 1


def test_a_deadline_precedes_a_waiting_minimum_but_not_a_running_one() -> None:
    rivals = [waiting(sizes=(4,), waited_s=9_999.0), waiting(**due(25))]
    assert chosen(Scene(rivals=rivals)) == [0, 4]
    rivals = [running(4, sizes=(4,), run_s=1.0), waiting(**due(25))]
    scene = Scene(rivals=rivals)
    assert scene.contest.deadlines.missed[1].rivals == (0,)
    assert chosen(scene) == [4, 0]


@pytest.mark.parametrize(
    ("runs", "fields", "sizes"),
    [
        ("displaced", {"run_s": 5.0}, [4, 0, 0]),
        ("displaced", {"run_s": 60.0}, [0, 4, 0]),
        ("displaced", {"run_s": 60.0, "pinned": True}, [4, 0, 0]),
        ("postponed", {"run_s": 5.0}, [4, 0, 0]),
        ("postponed", {"run_s": 60.0}, [0, 4, 0]),
        ("postponed", {"run_s": 5.0, "forced": True}, [0, 4, 0]),
    ],
)
def test_deadlines_of_others_leave_a_job_its_minimum_run_time(
    runs: str, fields: dict[str, object], sizes: list[int]
) -> None:
    """Two short jobs are in time if the running one stops: it then misses its deadline, or starts again after them."""
    left_s = {"displaced": 30.0, "postponed": 100.0}[runs]
    short = {**due(0), "sizes": (4,), "remaining": 4_000.0}
    first, second = (waiting(**{**short, "left_s": one}) for one in (12.0, 22.0))
    scene = Scene(rivals=[running(4, **due(left_s, sizes=(4,), **fields)), first, second])
    assert chosen(scene) == sizes


def test_a_higher_priority_takes_the_slots_of_a_running_job_for_its_deadline() -> None:
    rivals = [running(4, sizes=(4,), priority=10, run_s=1.0), waiting(**due(25, priority=90))]
    assert chosen(Scene(rivals=rivals)) == [0, 4]


def test_a_guaranteed_size_needs_no_evidence() -> None:
    tired = due(25, change_s=0.1, recent_s=50.0, known=(1,))
    scene = Scene(rivals=[running(1, **{**tired, "left_s": 25.2}), running(4)], capacity=(5,))
    contest = scene.contest
    assert not contest.unproven[0].any()
    assert not contest.resting[0].any()
    assert contest.seats.firm[0]
    assert chosen(scene) == [4, 1]
    free = Scene(rivals=[running(1, **{**tired, "left_s": np.inf}), running(4)], capacity=(5,)).contest
    assert free.unproven[0].any()


def test_a_job_near_its_end_grows_for_its_deadline() -> None:
    ends = {**due(29.0), "remaining": 5_000.0, "change_s": 1.0}
    assert chosen(Scene(rivals=[running(1, **ends)], capacity=(2,))) == [2]
    assert Scene(rivals=[running(1, **{**ends, "left_s": np.inf})]).contest.resting[0].any()


def test_a_job_that_must_leave_its_slots_is_not_firm() -> None:
    scene = Scene(rivals=[running(2, **due(50, forced=True))])
    assert scene.contest.due.tolist() == [True]
    assert not scene.contest.seats.firm.any()


def test_the_masks_of_a_contest_name_what_is_too_late() -> None:
    contest = Scene(rivals=[running(1, **due(50)), waiting(sizes=(1,))]).contest
    assert contest.too_late.tolist() == [[True, False, False], [False, False, False]]
    assert contest.due.tolist() == [True, False]
    assert contest.seats.columns.tolist() == [1, 0]


def test_a_cluster_without_slots_has_no_plan() -> None:
    contest = Scene(rivals=[waiting(**due(50))], sizes=(), capacity=(0,)).contest
    assert contest.deadlines.met == {}
    assert contest.seats.columns.tolist() == [NOTHING]


def test_the_goodput_policy_gives_what_a_deadline_leaves() -> None:
    scene = Scene(rivals=[running(2, weight=100.0), running(2, weight=0.01, **due(50))], capacity=(4,))
    choices = Goodput().choose(scene.contest.given, scene.contest.solver(solve))
    assert scene.sizes_of(choices.chosen) == [2, 2]
