"""Tests of each decision of a search: limits, the cost of visits, their order, and where the job settles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.forecasts import SearchPhase
from service.domain.perf.searches.search import (
    BOUND,
    VISIT_S,
    VISIT_STEPS,
    SearchCost,
    SearchGoal,
    SearchStep,
    search_step,
)
from service.domain.perf.searches.visits import visits_of
from service.domain.policies.framework.policy import Configurations
from tests.unit.service.domain.perf.searches import SETTLED, VISITING, known_of, place_of, sizes

MEASURED = float(VISIT_STEPS)


def step(
    per_s: list[float],
    steps: list[float] | None = None,
    *,
    aim: SearchGoal | None = None,
    configurations: Configurations | None = None,
    low: float = 1.0,
    known: dict[str, Any] | None = None,
    **place: Any,
) -> SearchStep:
    """Next step of a full search for time on 1, 2, 4 ... slots."""
    columns = configurations or sizes(*(2**index for index in range(len(per_s))))
    goal = aim or SearchGoal(mode="full", objective="time")
    return search_step(goal, columns, known_of(per_s, steps, low, **(known or {})), place_of(**place))


@pytest.mark.parametrize(
    ("mode", "slots", "kinds", "allowed", "expected"),
    [
        ("full", (1, 2, 4), 1, None, [0, 1, 2]),
        ("none", (1, 2, 4), 1, None, []),
        ("partial", (1, 2, 4, 8), 1, None, [0, 1, 3]),
        ("partial", (2, 4, 8), 1, None, [0, 2]),  # the smallest has several slots already
        ("partial", (1, 2), 1, None, [0, 1]),
        ("partial", (1,), 1, None, [0]),
        ("partial", (4,), 1, None, [0]),
        ("partial", (8, 4, 1, 2), 1, None, [0, 2, 3]),  # in any order of the columns
        ("partial", (1, 2, 4, 8), 2, None, [0, 1, 3, 4, 5, 7]),
        ("partial", (1, 2, 4, 8), 2, [2, 3, 4], [2, 3, 4]),
        ("full", (1, 2, 4), 2, [1, 5], [1, 5]),
        ("full", (1, 2, 4), 1, [], []),
    ],
)
def test_sizes_to_visit(
    mode: Any, slots: tuple[int, ...], kinds: int, allowed: list[int] | None, expected: list[int]
) -> None:
    configurations = sizes(*slots, kinds=kinds)
    width = configurations.slots.size
    mask = np.isin(np.arange(width), range(width) if allowed is None else allowed)
    assert (
        np.flatnonzero(visits_of(mode, configurations, mask, np.zeros(width, np.int64))).tolist() == expected
    )


@pytest.mark.parametrize("mode", ["full", "partial"])
def test_of_markets_of_one_size_the_cheapest_is_visited(mode: Any) -> None:
    slots = np.array([1, 1, 2, 2])
    configurations = Configurations(
        kinds=("cpu",),
        kind=np.zeros(4, dtype=np.int64),
        slots=slots,
        nodes=np.ones(4, dtype=np.int64),
        usd_per_h=np.array([2.0, 1.0, 3.0, 4.0]),
    )
    assert np.flatnonzero(
        visits_of(mode, configurations, np.ones(4, bool), np.zeros(4, np.int64))
    ).tolist() == [1, 2]
    dear = np.array([True, False, False, True])
    assert np.flatnonzero(visits_of(mode, configurations, dear, np.zeros(4, np.int64))).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("objective", "limits", "expected"),
    [
        # 3,600 samples at $1 an hour and slot: 36, 18, 12 and 10 s; 1, 1, 1.33 and 2.2 cents.
        ("time", {}, 3),
        ("time", {"max_cost_usd": 0.015}, 2),
        ("time", {"max_cost_usd": 0.011}, 1),
        ("time", {"max_cost_usd": 0.001}, 0),  # exceeded least: a tie goes to the first
        ("cost", {}, 1),  # equal costs: the faster one
        ("cost", {"max_time_s": 15.0}, 2),
        ("cost", {"max_time_s": 10.5}, 3),
        ("cost", {"max_time_s": 5.0}, 3),
        ("balanced", {}, 2),
        ("balanced", {"max_cost_usd": 0.012}, 1),
        ("balanced", {"max_time_s": 11.0}, 3),
        ("balanced", {"max_time_s": 13.0, "max_cost_usd": 0.02}, 2),
        ("balanced", {"max_time_s": 0.0}, 3),
    ],
)
def test_the_best_configuration_for_each_goal(
    objective: Any, limits: dict[str, float], expected: int
) -> None:
    aim = SearchGoal(mode="full", objective=objective, **limits)
    found = step([100.0, 200.0, 300.0, 360.0], [50.0] * 4, aim=aim, left=3600.0)
    assert (found.target, found.phase) == (expected, SETTLED)


@pytest.mark.parametrize(("max_time_s", "expected"), [(18.0, 1), (17.99, 2)])
def test_a_limit_may_be_met_exactly(max_time_s: float, expected: int) -> None:
    aim = SearchGoal(mode="full", objective="cost", max_time_s=max_time_s)
    assert step([100.0, 200.0, 300.0], [50.0] * 3, aim=aim, left=3600.0).target == expected


def test_limits_are_compared_with_the_p90() -> None:
    aim = SearchGoal(mode="full", objective="cost", max_time_s=20.0)
    for low, expected in ((0.91, 1), (0.89, 2)):
        assert step([100.0, 200.0, 300.0], [50.0] * 3, aim=aim, left=3600.0, low=low).target == expected


@pytest.mark.parametrize("low", [0.0, math.nan, 2.0])
def test_an_interval_that_is_not_valid_counts_as_none(low: float) -> None:
    aim = SearchGoal(mode="full", objective="cost", max_time_s=18.0)
    assert step([100.0, 200.0, 300.0], [50.0] * 3, aim=aim, left=3600.0, low=low).target == 1


def test_limits_do_not_bind_a_run_of_unknown_length() -> None:
    aim = SearchGoal(mode="full", objective="cost", max_time_s=1e-3)
    found = step([100.0, 200.0, 300.0], [50.0] * 3, aim=aim, left=math.nan)
    assert found.target == 1
    assert "within the limits" in found.reason


def test_a_run_that_is_nearly_over_counts_as_one_sample() -> None:
    assert step([100.0, 200.0], [50.0] * 2, left=0.0).target == 1
    assert step([100.0, 200.0], [50.0] * 2, left=-5.0).target == 1


@pytest.mark.parametrize("per_s", [0.0, 1e-10, 1e16, math.nan, -1.0])
def test_a_speed_that_is_not_valid_cannot_run(per_s: float) -> None:
    assert step([100.0, per_s], [50.0, 50.0]).target == 0
    alone = step([per_s], [50.0])
    assert (alone.target, alone.phase) == (-1, SearchPhase.OFF)


def test_nothing_is_allowed() -> None:
    found = step([100.0, 200.0], [50.0] * 2, known={"allowed": np.zeros(2, bool)})
    assert (found.target, found.phase, found.spent) == (-1, SearchPhase.OFF, SearchCost())


@pytest.mark.parametrize(
    ("objective", "overhead", "share"),
    [
        # 20 steps of 64 samples at 64/s on one slot take 20 s, at 128/s on two slots 10 s; a pause 0.5 s.
        ("time", (10.5, (20 * 1 - 10 * 2 + 0.5) / 3600), 10.5 / 100),
        ("balanced", (10.5, 0.5 / 3600), 10.5 / 100),
    ],
)
def test_the_cost_of_a_visit_to_a_slower_size(
    objective: Any, overhead: tuple[float, float], share: float
) -> None:
    aim = SearchGoal(mode="full", objective=objective)
    spent = step([64.0, 128.0], [20.0, 20.0], aim=aim, current=1, left=12_800 - 2560, done=2560.0).spent
    assert (spent.time_s, spent.cost_usd) == (pytest.approx(20.5), pytest.approx(20.5 / 3600))
    assert (spent.overhead_s, spent.overhead_usd) == (pytest.approx(overhead[0]), pytest.approx(overhead[1]))
    assert spent.share == pytest.approx(share)


def test_a_visit_to_a_faster_but_dearer_size_costs_money_and_saves_time() -> None:
    """A search for cost compares 20 steps at 128/s on two slots at $2 with 20 at 100/s on one slot at $1."""
    aim = SearchGoal(mode="full", objective="cost")
    found = step([100.0, 128.0], [20.0, 20.0], aim=aim, current=0, left=12_800 - 2560, done=2560.0)
    assert found.target == 0
    assert found.spent.overhead_s == pytest.approx(10.0 - 12.8 + 0.5)
    assert found.spent.overhead_usd == pytest.approx((20.0 - 12.8 + 0.5 * 2) / 3600)
    assert found.spent.share == pytest.approx((20.0 - 12.8 + 1.0) / 128)


def test_training_on_the_best_size_is_no_cost_of_the_search() -> None:
    assert step([128.0], [500.0], current=0).spent == SearchCost(share=0.0)


def test_a_stay_beyond_three_visits_is_not_charged() -> None:
    """A visit to 64/s is planned to last 20 s, so at most 60 s are charged."""
    short, long = (step([64.0, 128.0], [steps, 20.0], current=1, left=1e6).spent for steps in (60.0, 6000.0))
    assert short.time_s == pytest.approx(60.5)
    assert long.time_s == pytest.approx(60.5)
    assert long.overhead_s == pytest.approx(30.5)


def test_a_visit_of_quick_steps_is_charged_as_if_it_took_its_least_time() -> None:
    """Twenty steps at 6,400/s take 0.2 s, but a visit takes 3 s: at most 9 s are charged."""
    spent = step([6400.0, 12_800.0], [6400.0, 20.0], current=1, left=1e8).spent
    assert spent.time_s == pytest.approx(3 * VISIT_S + 0.5)


@pytest.mark.parametrize(("left", "phase"), [(7901.0, VISITING), (7899.0, SETTLED)])
def test_a_visit_is_made_if_it_costs_at_most_a_tenth_of_the_run(left: float, phase: SearchPhase) -> None:
    """The visit takes 12.8 s for the work of 8.53 s, and two changes take 1 s: a tenth of 52.67 s at 150/s."""
    found = step([150.0, 100.0], [50.0, 0.0], current=0, left=left, done=0.0)
    assert (found.phase, found.skipped) == (phase, int(phase is SETTLED))


def test_a_job_that_has_not_started_may_always_make_its_first_visit() -> None:
    assert step([100.0, 190.0], left=1.0, done=0.0, current=-1).phase is VISITING
    resumed = step([100.0, 190.0], [30.0, 0.0], left=1.0, done=1920.0, current=-1)
    assert resumed.phase is SETTLED


def test_a_visit_that_has_begun_is_finished() -> None:
    begun = step([100.0, 190.0], [30.0, 5.0], left=1.0, done=2240.0, current=1)
    assert (begun.target, begun.phase, begun.visited, begun.visits) == (1, VISITING, 1, 2)


@pytest.mark.parametrize(
    ("current", "made", "expected"),
    [
        (-1, [0.0] * 6, 0),  # smallest first
        (1, [MEASURED] * 2 + [0.0] * 4, 2),  # the held kind before the other
        (4, [0.0, 0.0, 0.0, 0.0, MEASURED, 0.0], 3),
        (5, [0.0, 0.0, 0.0, MEASURED, MEASURED, MEASURED], 0),
        (2, [0.0, 0.0, MEASURED - 1, 0.0, 0.0, 0.0], 2),  # the present one is finished
    ],
)
def test_visits_go_from_few_slots_to_many_and_from_the_held_kind_to_others(
    current: int, made: list[float], expected: int
) -> None:
    found = step(
        [100.0, 190.0, 300.0] * 2, made, configurations=sizes(1, 2, 4, kinds=2), current=current, left=1e9
    )
    assert (found.target, found.phase) == (expected, VISITING)


@pytest.mark.parametrize(
    ("per_s", "current", "settled_on", "young", "expected"),
    [
        pytest.param([100.0, 101.0], -1, -1, False, 1, id="holds nothing"),
        pytest.param([100.0, 101.0], 1, -1, False, 1, id="holds the best"),
        pytest.param([100.0, 101.9], 0, -1, False, 0, id="within 2 % when the visits end"),
        pytest.param([100.0, 102.1], 0, -1, False, 1, id="beyond 2 %"),
        pytest.param([100.0, 104.9], 0, 0, False, 0, id="within 5 % once settled"),
        pytest.param([100.0, 105.1], 0, 0, False, 1, id="beyond 5 %"),
        pytest.param([100.0, 300.0], 0, 0, True, 0, id="young"),
        pytest.param([100.0, 300.0], 0, 1, True, 1, id="young, but settled elsewhere"),
        pytest.param([0.0, 300.0], 0, 0, True, 1, id="cannot run where it is"),
    ],
)
def test_where_a_job_settles(
    per_s: list[float], current: int, settled_on: int, young: bool, expected: int
) -> None:
    found = step(per_s, [50.0, 50.0], current=current, settled_on=settled_on, young=young)
    assert (found.target, found.phase) == (expected, SETTLED)


def test_a_balanced_search_stays_only_if_both_time_and_cost_are_about_as_good() -> None:
    aim = SearchGoal(mode="full", objective="balanced")
    near = step([100.0, 102.0], [50.0] * 2, aim=aim, configurations=sizes(1, 1), current=0, settled_on=0)
    assert near.target == 0
    dearer = step([100.0, 100.0], [50.0] * 2, aim=aim, current=1, settled_on=1)
    assert dearer.target == 0


def test_a_settled_job_moves_where_it_would_miss_its_limit() -> None:
    aim = SearchGoal(mode="full", objective="time", max_time_s=98.0)
    assert step([100.0, 104.0], [50.0] * 2, aim=aim, current=0, settled_on=0, left=1e4).target == 1
    without = SearchGoal(mode="full", objective="time")
    assert step([100.0, 104.0], [50.0] * 2, aim=without, current=0, settled_on=0, left=1e4).target == 0


def test_a_search_without_visits_starts_small_unless_its_class_was_measured() -> None:
    aim = SearchGoal(mode="none", objective="time")
    new = step([100.0, 190.0], aim=aim, configurations=sizes(2, 1))
    assert (new.target, new.phase, new.visits) == (1, SETTLED, 0)
    assert step([100.0, 190.0], aim=aim, known={"modelled": True}).target == 1


def test_a_step_counts_its_visits() -> None:
    found = step([100.0, 190.0, 300.0], [MEASURED, 0.0, 0.0], current=0, left=1e9)
    assert (found.visited, found.visits, found.skipped) == (1, 3, 0)
    short = step([100.0, 190.0, 300.0], [MEASURED, 0.0, 0.0], current=0, left=1.0, done=1280.0)
    assert (short.visited, short.visits, short.skipped, short.phase) == (1, 3, 2, SETTLED)


@settings(max_examples=40)
@given(
    st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=4),
    st.sampled_from(["time", "cost", "balanced"]),
    st.floats(0.1, 1e6),
)
def test_no_other_configuration_beats_the_settled_one_in_both_quantities(
    per_s: list[float], objective: Any, left: float
) -> None:
    aim = SearchGoal(mode="full", objective=objective)
    found = step(per_s, [50.0] * len(per_s), aim=aim, left=left)
    assert found.phase is SETTLED
    slots = np.array([2**index for index in range(len(per_s))])
    time_s, cost = 1 / np.array(per_s), slots / np.array(per_s)
    dominated = (time_s < time_s[found.target]) & (cost < cost[found.target])
    assert not dominated.any()
    if objective != "balanced":
        score = time_s if objective == "time" else cost
        assert score[found.target] == pytest.approx(score.min())
    assert found.spent.share is not None
    assert found.spent.share >= 0.0


@settings(max_examples=30)
@given(st.floats(1.0, 1e7), st.floats(0.0, 60.0), st.floats(1.0, 1000.0))
def test_no_visit_is_planned_beyond_the_bound(left: float, change_s: float, other: float) -> None:
    """A visit and the changes to and fro, relative to the run on the best configuration."""
    found = step([100.0, other], [50.0, 0.0], current=0, left=left, done=3200.0, change_s=change_s)
    if found.phase is VISITING:
        best = max(100.0, other)
        visit_s = max(VISIT_S, VISIT_STEPS * 64 / other)
        extra_s = max(visit_s * (1 - other / best), 0.0) + change_s * (1 if other > 100.0 else 2)
        assert extra_s <= BOUND * (left + 3200.0) / best * (1 + 1e-9)


def test_a_new_job_makes_the_visits_of_a_partial_search() -> None:
    aim = SearchGoal(mode="partial", objective="time")
    found = step([100.0, 190.0, 300.0, 400.0], aim=aim, done=0.0)
    assert (found.target, found.phase, found.visits) == (0, VISITING, 3)


def test_the_first_column_may_be_the_held_one() -> None:
    """Its kind has a size of four slots left to visit, another kind a size of one."""
    configurations = Configurations(
        kinds=("a", "b"),
        kind=np.array([0, 0, 1]),
        slots=np.array([2, 4, 1]),
        nodes=np.ones(3, dtype=np.int64),
        usd_per_h=np.array([2.0, 4.0, 1.0]),
    )
    made = [MEASURED, 0.0, 0.0]
    assert step([100.0, 190.0, 60.0], made, configurations=configurations, current=0, left=1e9).target == 1


def test_a_free_configuration_has_no_share_of_dollars() -> None:
    """One of two kinds has no price: visits to the other are no share of a run that costs nothing."""
    aim = SearchGoal(mode="full", objective="cost")
    configurations = Configurations(
        kinds=("free", "paid"),
        kind=np.array([0, 0, 1]),
        slots=np.ones(3, dtype=np.int64),
        nodes=np.ones(3, dtype=np.int64),
        usd_per_h=np.array([0.0, 0.0, 3.0]),
    )
    measured = {"configurations": configurations, "steps": [50.0] * 3, "aim": aim}
    assert step([100.0, 100.0, 500.0], **measured, current=2).spent.share == 0.0
    assert step([100.0, 120.0, 500.0], **measured, current=0, settled_on=0).target == 0, (
        "as cheap as the best"
    )
