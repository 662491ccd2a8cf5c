"""Turns after the maximum wait: whom they stop, and whom they wait for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.contention.guaranteed_jobs import latest_turn_s, smallest_columns
from service.domain.contention.turns import turns_of
from service.domain.policies.registry import policy
from tests.unit.service.domain.contention.scenes import Rival, Scene, keeps_rows, running, waiting

PAIR = {"sizes": (2,)}


def seats(*rivals: Rival, capacity: int = 2) -> list[int]:
    scene = Scene(rivals=rivals, capacity=(capacity,))
    return scene.sizes_of(scene.seats.columns)


@pytest.mark.parametrize(
    ("priority", "remaining", "turn"), [(90, 100.0, False), (50, 100.0, True), (90, 1e6, True)]
)
def test_turn_of_a_brief_job_stops_no_higher_priority(priority: int, remaining: float, turn: bool) -> None:
    """A job of 100 samples trains for a second, and a stop and a start cost 17."""
    scene = Scene(
        rivals=[
            running(2, **PAIR, priority=priority, run_s=9000.0, restart_s=17.0),
            waiting(**PAIR, waited_s=5000.0, remaining=remaining),
        ],
        capacity=(2,),
    )
    assert scene.sizes_of(scene.seats.columns)[1] == (2 if turn else 0)
    assert bool(scene.seats.turnless[1]) is not turn
    bound_s = latest_turn_s(scene.given, scene.tenure, scene.seats)[1]
    assert math.isfinite(bound_s) is turn


@pytest.mark.parametrize(("left_s", "turn"), [(2.0, False), (4.0, True)])
def test_turn_waits_for_a_job_that_ends_within_the_cost_of_a_stop(left_s: float, turn: bool) -> None:
    ending = running(1, sizes=(1,), reported_left_s=left_s)
    late = waiting(sizes=(1,), waited_s=5000.0)
    scene = Scene(rivals=[ending, *[running(1, sizes=(1,))] * 3, late])
    assert bool(scene.seats.barred[4]) is not turn


@pytest.mark.parametrize(
    ("waited_s", "run_s", "priority", "turn", "bound_s"),
    [
        (5000.0, 9000.0, 70, False, 2200.0 + 3 * 7200.0),
        (8000.0, 7100.0, 70, False, 3 * 7200.0),
        (8000.0, 7300.0, 70, True, 3 * 7200.0),
        (5000.0, 7300.0, 50, True, 3 * 7200.0),
    ],
)
def test_turn_stops_a_higher_priority_only_after_it_ran_beside_the_wait_for_the_length_of_a_turn(
    waited_s: float, run_s: float, priority: int, turn: bool, bound_s: float
) -> None:
    """Starts of 300 s make a minimum run time of 7200 s, four times the maximum wait."""
    high = running(2, **PAIR, priority=priority, run_s=run_s, min_run_s=7200.0)
    late = waiting(**PAIR, waited_s=waited_s)
    scene = Scene(rivals=[high, late], capacity=(2,))
    assert scene.sizes_of(scene.seats.columns)[1] == (2 if turn else 0)
    assert latest_turn_s(scene.given, scene.tenure, scene.seats)[1] == bound_s


@pytest.mark.parametrize(("run_s", "sizes"), [(30.0, [2, 1, 0]), (600.0, [2, 0, 2])])
def test_turn_waits_for_the_end_of_a_lower_turn_before_it_stops_a_higher_priority(
    run_s: float, sizes: list[int]
) -> None:
    high = running(2, **PAIR, priority=90, run_s=9000.0)
    low = running(1, sizes=(1,), priority=30, run_s=run_s)
    late = waiting(**PAIR, priority=70, waited_s=5000.0)
    scene = Scene(rivals=[high, low, late])
    assert scene.sizes_of(policy("goodput").choose(scene.contest.given, solve).chosen) == sizes
    assert scene.seats.reserving == (2 if run_s < 60.0 else None)


def test_free_slots_are_not_kept_for_a_turn_that_a_higher_priority_delays() -> None:
    high = running(4, sizes=(4,), priority=90, run_s=2000.0, min_run_s=7200.0)
    late = waiting(sizes=(2,), waited_s=2000.0)
    small = waiting(sizes=(1,), waited_s=10.0)
    scene = Scene(rivals=[high, late, small], capacity=(5,))
    assert scene.seats.reserving is None
    assert scene.sizes_of(policy("goodput").choose(scene.contest.given, solve).chosen) == [4, 0, 1]


rivals = st.lists(
    st.builds(
        Rival,
        holds=st.sampled_from((0, 0, 1, 2)),
        sizes=st.sampled_from(((1,), (2,))),
        priority=st.sampled_from((10, 50, 90)),
        waited_s=st.sampled_from((0.0, 1900.0, 8000.0)),
        run_s=st.sampled_from((30.0, 600.0, 9000.0)),
        min_run_s=st.sampled_from((60.0, 7200.0)),
        pinned=st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@drawn(many=rivals)
@settings(max_examples=60, deadline=None)
def test_seats_of_turns_fit_beside_every_higher_priority_that_none_of_them_may_stop(
    many: list[Rival],
) -> None:
    jobs = [
        replace(
            one, sizes=(one.holds,) if one.holds else one.sizes, waited_s=0.0 if one.holds else one.waited_s
        )
        for one in many
    ]
    scene = Scene(rivals=jobs, capacity=(max(4, sum(one.holds for one in jobs)),))
    given, tenure = scene.given, scene.tenure
    holds, smallest, columns = given.current != NOTHING, smallest_columns(given), scene.seats.columns
    rights = turns_of(tenure.priority, tenure.run_s, given.waited_s, tenure.min_run_s)
    turns = ~holds & (columns != NOTHING) & (given.waited_s >= scene.max_wait_s)
    waiting_priorities = [one.priority for one, held in zip(jobs, holds, strict=True) if not held]
    shielded = holds & ~(rights.may_stop & turns[None, :]).any(axis=1)
    shielded &= tenure.priority > max(waiting_priorities, default=-1)
    kept = np.where(columns != NOTHING, columns, np.where(shielded, smallest, NOTHING))
    assert keeps_rows(given, kept)
