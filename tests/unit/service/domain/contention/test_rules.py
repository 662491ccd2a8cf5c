"""The rules applied to the input of a policy: seats, sizes that wait, jobs at rest and reserved slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.goodput import Goodput
from tests.unit.service.domain.contention.scenes import Scene, keeps_rows, running, scenes, waiting


def chosen(scene: Scene) -> list[int]:
    """The sizes that the goodput policy chooses under the rules."""
    contest = scene.contest
    return scene.sizes_of(Goodput().choose(contest.given, contest.solver(solve)).chosen)


def test_an_uncontended_round_is_unchanged_but_for_its_seats() -> None:
    scene = Scene(rivals=[running(2, run_s=600.0), waiting()], capacity=(8,))
    contest = scene.contest
    assert (contest.given.allowed == scene.given.allowed).all()
    assert contest.given.seats is not None
    assert scene.sizes_of(contest.given.seats) == [1, 1]
    for mask in (contest.unproven, contest.resting, contest.reserved):
        assert not mask.any()


@pytest.mark.parametrize(("jobs", "sizes"), [(0, (1, 2, 4)), (2, ())])
def test_a_cluster_without_jobs_or_slots_has_a_contest_too(jobs: int, sizes: tuple[int, ...]) -> None:
    scene = Scene(rivals=[waiting(sizes=sizes)] * jobs, sizes=sizes, capacity=(0,))
    contest = scene.contest
    assert contest.seats.columns.tolist() == [NOTHING] * jobs
    assert contest.unproven.shape == contest.resting.shape == scene.given.allowed.shape
    assert contest.latest_turn_s.tolist() == [0.0] * jobs


def test_a_waiting_minimum_gets_slots_from_a_large_job() -> None:
    assert chosen(Scene(rivals=[running(4, weight=100.0), waiting(sizes=(1,), weight=0.01)])) == [2, 1]


def test_an_unmeasured_size_is_not_chosen_at_the_cost_of_others() -> None:
    rivals = [running(1, known=(1,), weight=100.0), running(2, sizes=(1, 2))]
    scene = Scene(rivals=rivals, capacity=(3,))
    assert scene.contest.unproven[0].tolist() == [False, True, True]
    assert chosen(scene) == [1, 2]


def test_slots_are_reserved_for_the_overdue_job() -> None:
    """One job of four slots is firm; the overdue job of four waits for it, and no other job may start."""
    rivals = [
        running(2, sizes=(2,), run_s=1.0),
        waiting(sizes=(4,), waited_s=2000.0),
        waiting(sizes=(2,), waited_s=10.0),
    ]
    contest = Scene(rivals=rivals).contest
    assert contest.seats.reserving == 1
    assert contest.reserved.tolist() == [False, True, True]
    assert not contest.given.allowed[1:].any()
    assert chosen(Scene(rivals=rivals)) == [2, 0, 0]


def test_nothing_is_reserved_without_an_overdue_job() -> None:
    rivals = [running(2, sizes=(2,), run_s=1.0), waiting(sizes=(4,), waited_s=100.0), waiting(sizes=(2,))]
    contest = Scene(rivals=rivals).contest
    assert not contest.reserved.any()


def test_a_job_at_rest_neither_grows_nor_shrinks_for_goodput() -> None:
    resting = running(2, recent_s=6.0, change_s=0.5, scaling=0.0, weight=0.1)
    scene = Scene(rivals=[resting, running(1, weight=100.0)], capacity=(5,))
    contest = scene.contest
    assert contest.given.firm is not None
    assert contest.given.firm.tolist() == [True, False]
    assert scene.marked(contest.resting) == [1, 4]
    assert chosen(scene) == [2, 2]
    moving = replace(scene, rivals=[replace(resting, recent_s=0.0), scene.rivals[1]])
    assert chosen(moving) == [1, 4]


def test_a_job_at_rest_still_shrinks_for_a_minimum() -> None:
    resting = running(4, recent_s=6.0, change_s=0.5)
    assert chosen(Scene(rivals=[resting, waiting(sizes=(1,))])) == [2, 1]


def test_a_leased_job_keeps_its_slots_and_changes_after_it() -> None:
    within = running(2, leased=True, scaling=0.0, weight=0.1)
    scene = Scene(rivals=[within, running(1, weight=100.0)], capacity=(5,))
    assert scene.marked(scene.contest.resting) == [1, 4]
    assert chosen(scene) == [2, 2]
    after = replace(scene, rivals=[replace(within, leased=False), scene.rivals[1]])
    assert not after.contest.resting.any()
    assert chosen(after) == [1, 4]


def test_a_leased_job_shrinks_for_a_minimum_and_leaves_lost_slots() -> None:
    assert chosen(Scene(rivals=[running(4, leased=True), waiting(sizes=(1,))])) == [2, 1]
    forced = Scene(rivals=[running(2, leased=True, forced=True)])
    assert not forced.contest.resting.any()


def test_a_job_that_must_leave_is_not_kept() -> None:
    scene = Scene(rivals=[running(2, recent_s=6.0, change_s=0.5, forced=True)])
    assert scene.contest.given.firm is not None
    assert not scene.contest.given.firm.any()
    assert not scene.contest.resting[0, scene.column(1)]


def test_a_job_that_ends_soon_keeps_its_size() -> None:
    scene = Scene(rivals=[running(2, remaining=1000.0)], capacity=(8,))
    assert scene.marked(scene.contest.resting) == [4]
    assert chosen(scene) == [2]


def test_the_solver_gives_every_seat_slots() -> None:
    scene = Scene(rivals=[waiting(sizes=(2,)), waiting(sizes=(2, 4))])
    problem = Problem(
        utility=np.array([[-np.inf, -5.0, -np.inf], [-np.inf, 1.0, 9.0]]),
        idle=np.zeros(2),
        rows=scene.given.rows,
        current=np.full(2, NOTHING),
    )
    assert scene.sizes_of(solve(problem).chosen) == [0, 4]
    assert scene.sizes_of(scene.contest.solver(solve)(problem).chosen) == [2, 2]


def test_a_running_job_moves_to_its_seat_on_another_kind_and_the_overdue_job_gets_its_slots() -> None:
    """Kinds of two slots and of one: two adjacent slots are free only once the running job has moved."""
    rivals = [waiting(sizes=(2,), waited_s=1800.0), waiting(sizes=(1,)), running(1, sizes=(1,), run_s=0.0)]
    scene = Scene(rivals=rivals, capacity=(2, 1))
    contest = scene.contest
    choice = Goodput().choose(contest.given, contest.solver(solve)).chosen
    assert choice.tolist() == [scene.column(2, kind=0), NOTHING, scene.column(1, kind=1)]


def test_a_job_that_ends_soon_below_its_smallest_size_may_take_its_seat() -> None:
    scene = Scene(rivals=[running(1, sizes=(2, 4), remaining=1000.0), running(1)])
    assert chosen(scene)[0] == 2


def test_the_latest_turn_is_that_of_the_seats() -> None:
    scene = Scene(rivals=[running(4, sizes=(4,)), waiting(sizes=(4,), waited_s=1700.0)])
    assert scene.contest.latest_turn_s.tolist() == [0.0, 100.0 + 3 * 60.0]


@drawn(scenes())
@settings(max_examples=25)
def test_the_rules_only_forbid_and_their_seats_are_possible(scene: Scene) -> None:
    contest = scene.contest
    given = contest.given
    assert not (given.allowed & ~scene.given.allowed).any()
    forbidden = contest.unproven | contest.resting | contest.reserved[:, None]
    assert (given.allowed == (scene.given.allowed & ~forbidden)).all()
    if given.seats is None:
        return
    assert keeps_rows(scene.given, given.seats)
    seated = np.flatnonzero(given.seats != NOTHING)
    assert given.allowed[seated].any(axis=1).all(), "every job with a seat has a configuration to choose"


@drawn(scenes())
@settings(max_examples=20)
def test_a_choice_under_the_rules_gives_every_seat_slots_and_exceeds_no_row(scene: Scene) -> None:
    contest = scene.contest
    choice = Goodput().choose(contest.given, contest.solver(solve)).chosen
    assert keeps_rows(scene.given, choice)
    rows = np.flatnonzero(choice != NOTHING)
    assert contest.given.allowed[rows, choice[rows]].all()
    if contest.given.seats is not None:
        assert (choice[contest.given.seats != NOTHING] != NOTHING).all()


@drawn(scenes())
@settings(max_examples=20)
def test_the_rules_are_deterministic(scene: Scene) -> None:
    first, again = scene.contest, replace(scene).contest
    assert (first.given.allowed == again.given.allowed).all()
    assert (first.seats.columns == again.seats.columns).all()
    assert first.seats.reserving == again.seats.reserving


def test_a_capacity_row_with_no_room_leaves_every_waiting_job_without_a_seat() -> None:
    spent = Row(name="budget/all", capacity=0.0, demand=np.array([1.0, 2.0, 4.0]))
    scene = Scene(rivals=[waiting(), waiting()], rows=(spent,))
    assert scene.sizes_of(scene.contest.seats.columns) == [0, 0]
    assert chosen(scene) == [0, 0]
