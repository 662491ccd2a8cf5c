"""The rate limit on unrequested changes, by hand and by its invariants."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from headway.contract.run_facts import ImposedChange
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.knapsack.problem import Row
from service.domain.contention.rate import (
    ALLOWANCE,
    ENDING_S,
    WINDOW_S,
    at_rest,
    ending,
    keeping,
    not_repaid,
    recent_changes,
    with_imposed_change,
)
from tests.unit.service.builders import NOW
from tests.unit.service.domain.contention.scenes import Rival, Scene, keeps_rows, running, scenes, waiting

LIMIT_S = ALLOWANCE * WINDOW_S


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_allowance_is_six_seconds_in_ten_minutes() -> None:
    assert LIMIT_S == 6.0


def test_imposed_changes_are_counted_and_older_ones_forgotten() -> None:
    progress = JobProgress()
    for when_s, cost_s in ((0, 1.0), (300, 2.0), (599, 0.5)):
        progress = with_imposed_change(progress, at(when_s), cost_s)
    assert [one.cost_s for one in progress.imposed] == [1.0, 2.0, 0.5]
    assert [one.cost_s for one in recent_changes(progress, at(599.9))] == [1.0, 2.0, 0.5]
    assert [one.cost_s for one in recent_changes(progress, at(600))] == [2.0, 0.5], "the window is half open"
    later = with_imposed_change(progress, at(1000), 4.0)
    assert [one.cost_s for one in later.imposed] == [0.5, 4.0]
    assert (later.imposed_count, later.imposed_s) == (4, 7.5), "totals keep what the window forgets"


@drawn(st.lists(st.tuples(st.floats(0, 400), st.floats(0, 10)), max_size=12))
@settings(max_examples=25)
def test_the_window_holds_exactly_the_changes_of_the_last_ten_minutes(
    steps: list[tuple[float, float]],
) -> None:
    progress, now_s, times = JobProgress(), 0.0, []
    for gap_s, cost_s in steps:
        now_s += gap_s
        times.append(at(now_s))
        progress = with_imposed_change(progress, at(now_s), cost_s)
    expected = [when for when in times if at(now_s) - when < timedelta(seconds=WINDOW_S)]
    assert [one.at for one in recent_changes(progress, at(now_s))] == expected
    assert progress.imposed_count == len(steps)
    assert progress.imposed_s == pytest.approx(sum(cost_s for _, cost_s in steps))


def test_an_old_list_is_read_without_being_changed() -> None:
    progress = JobProgress(imposed=[ImposedChange(at=at(-900), cost_s=1.0)])
    assert recent_changes(progress, NOW) == []
    assert len(progress.imposed) == 1


@pytest.mark.parametrize(
    ("rival", "rests"),
    [
        (running(2, recent_s=5.5, change_s=0.5), False),
        (running(2, recent_s=5.6, change_s=0.5), True),
        (running(2, recent_s=0.0, change_s=6.0), False),
        (running(2, recent_s=0.1, change_s=6.0), True),
        # One restart alone exceeds the allowance: the policy charges its cost instead.
        (running(2, recent_s=100.0, change_s=6.1), False),
        # A change that its user or its search wants costs nothing.
        (running(2, recent_s=100.0, change_s=0.0), False),
        (waiting(recent_s=100.0), False),
    ],
)
def test_a_running_job_is_at_rest_once_its_allowance_is_used_up(rival: Rival, rests: bool) -> None:
    scene = Scene(rivals=[rival])
    assert at_rest(scene.given, scene.tenure.recent_s).tolist() == [rests]


@pytest.mark.parametrize(
    ("scaling", "change_s", "sizes"),
    [
        # From 2 to 4 slots: (2 ** 0.9 - 1) * 600 s = 519.6 s gained, at least twice the cost up to 259.8 s.
        (0.9, 259.0, []),
        (0.9, 260.0, [4]),
        # Twice the speed gains 600 s, exactly twice the cost.
        (1.0, 300.0, []),
        (1.0, 300.1, [4]),
        # No gain at all is never repaid.
        (0.0, 0.5, [4]),
    ],
)
def test_a_job_at_rest_grows_only_if_the_change_repays_twice_its_cost(
    scaling: float, change_s: float, sizes: list[int]
) -> None:
    scene = Scene(rivals=[running(2, scaling=scaling, change_s=change_s)])
    assert scene.marked(not_repaid(scene.given, np.array([True]))) == sizes
    assert scene.marked(not_repaid(scene.given, np.array([False]))) == []


def test_another_column_of_the_same_size_must_repay_too_and_the_held_one_need_not() -> None:
    scene = Scene(rivals=[running(2, scaling=0.9, change_s=1.0)], capacity=(4, 4))
    mask = not_repaid(scene.given, np.array([True]))[0]
    assert np.flatnonzero(mask).tolist() == [scene.column(2, kind=1)]


def test_a_job_without_a_known_speed_gains_without_bound() -> None:
    scene = Scene(rivals=[running(2)])
    given = scene.given
    given.goodput[0, given.current[0]] = 0.0
    assert not not_repaid(given, np.array([True])).any()


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"left_s": ENDING_S - 0.1}, [4]),
        ({"left_s": ENDING_S}, []),
        ({"left_s": 1.0, "change_s": 0.0}, []),
        ({"left_s": float("nan")}, []),
        ({"left_s": 0.0}, [4]),
    ],
)
def test_a_job_that_ends_soon_does_not_grow(fields: dict[str, float], sizes: list[int]) -> None:
    speed = 200.0
    rival = running(2, scaling=1.0, remaining=fields["left_s"] * speed, change_s=fields.get("change_s", 0.5))
    scene = Scene(rivals=[rival])
    assert scene.marked(ending(scene.given)) == sizes


def test_a_waiting_job_may_start_however_short_it_is() -> None:
    scene = Scene(rivals=[waiting(remaining=1.0)])
    assert not ending(scene.given).any()


def test_a_job_of_unknown_speed_is_not_ending() -> None:
    scene = Scene(rivals=[running(2, remaining=1.0)])
    scene.given.goodput[0, scene.given.current[0]] = 0.0
    assert not ending(scene.given).any()


def keeps(scene: Scene) -> list[bool]:
    resting = np.array([bool(one.holds) for one in scene.rivals])
    return keeping(scene.given, resting, scene.seats.columns).tolist()


def test_jobs_at_rest_keep_their_slots_beside_all_seats() -> None:
    assert keeps(Scene(rivals=[running(4)])) == [True]
    assert keeps(Scene(rivals=[running(4), waiting()])) == [False, False]
    assert keeps(Scene(rivals=[running(2), running(2), waiting()], capacity=(5,))) == [True, True, False]


def test_the_earlier_job_keeps_its_slots_if_not_all_can() -> None:
    """Six slots for two jobs of two and the minimum of one of three: one slot of surplus is left."""
    rivals = [running(2), running(2), waiting(sizes=(2, 4))]
    assert keeps(Scene(rivals=rivals, capacity=(5,))) == [True, False, False]


def test_exactly_enough_is_enough_in_every_row_that_counts_the_job() -> None:
    demand = np.array([1.0, 2.0, 4.0])
    for capacity, jobs, kept in ((2.0, None, True), (1.9, None, False), (1.9, np.array([False]), True)):
        scene = Scene(
            rivals=[running(2)], rows=(Row(name="budget/all", capacity=capacity, demand=demand, jobs=jobs),)
        )
        assert keeps(scene) == [kept]


def test_a_configuration_that_is_not_allowed_is_not_kept() -> None:
    scene = Scene(rivals=[running(4, sizes=(1, 2))])
    assert keeps(scene) == [False]


@drawn(scenes())
@settings(max_examples=25)
def test_kept_slots_and_seats_together_exceed_no_row(scene: Scene) -> None:
    resting = np.array([bool(one.holds) for one in scene.rivals], dtype=np.bool_)
    kept = keeping(scene.given, resting, scene.seats.columns)
    assert not (kept & ~resting).any()
    assert keeps_rows(scene.given, np.where(kept, scene.given.current, scene.seats.columns))
