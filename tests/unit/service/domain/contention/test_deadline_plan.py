"""Plans of jobs with deadlines: sizes and starts by hand, the fewest misses, and capacity at every moment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.contention.deadline_plan import (
    MOST_PLANNED,
    DeadlinePlan,
    Deadlines,
    Miss,
    Occupancy,
    PlannedRun,
    plan_deadlines,
)

INF = math.inf
COLUMNS = (1, 2, 4)
"""Slots of the configurations."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """A job with P90 seconds by size; infinite for sizes that it may not have. `holds` is a size."""

    late_s: Sequence[float] = (INF, INF, INF)
    left_s: float = INF
    holds: int = 0
    promised: bool = False
    priority: int = 50
    run_s: float = INF
    stays_s: float = 0.0
    age_s: float = 0.0


def due(left_s: float, *late_s: float, **fields: Any) -> Due:
    return Due(left_s=left_s, late_s=(*late_s, INF, INF)[:3], **fields)


def column(size: int) -> int:
    return COLUMNS.index(size) if size else NOTHING


def deadlines_of(jobs: Sequence[Due], rows: tuple[Row, ...] = ()) -> Deadlines:
    late_s = np.array([one.late_s for one in jobs], dtype=np.float64).reshape(len(jobs), 3)
    return Deadlines(
        left_s=np.array([one.left_s for one in jobs], dtype=np.float64),
        late_s=late_s,
        may=np.isfinite(late_s),
        promised=np.array([one.promised for one in jobs], dtype=np.bool_),
        visiting=np.zeros(len(jobs), dtype=np.bool_),
        priority=np.array([one.priority for one in jobs], dtype=np.float64),
        rows=rows,
    )


def occupancy_of(jobs: Sequence[Due], slots: int) -> Occupancy:
    current = np.array([column(one.holds) for one in jobs], dtype=np.int64)
    sizes = np.array(COLUMNS)
    return Occupancy(
        rows=(Row(name="slots/a", capacity=float(slots), demand=sizes.astype(np.float64)),),
        slots=sizes,
        current=current,
        smallest=np.where(current != NOTHING, 0, NOTHING),
        run_s=np.array([one.run_s for one in jobs], dtype=np.float64),
        stays_s=np.array([one.stays_s for one in jobs], dtype=np.float64),
        age_s=np.array([one.age_s for one in jobs], dtype=np.float64),
    )


def planned(*jobs: Due, slots: int = 4, rows: tuple[Row, ...] = ()) -> DeadlinePlan:
    return plan_deadlines(deadlines_of(jobs, rows), occupancy_of(jobs, slots))


def run(start_s: float, end_s: float, size: int) -> PlannedRun:
    return PlannedRun(start_s, end_s, column(size))


@pytest.mark.parametrize(("left_s", "size"), [(100, 1), (99, 2), (60, 2), (59, 4), (40, 4)])
def test_the_smallest_size_that_is_in_time_is_planned(left_s: float, size: int) -> None:
    late_s = dict(zip(COLUMNS, (100.0, 60.0, 40.0), strict=True))
    assert planned(due(left_s, 100, 60, 40)).met == {0: run(0, late_s[size], size)}


def test_no_size_is_in_time() -> None:
    plan = planned(due(39, 100, 60, 40))
    assert plan.met == {}
    assert (plan.missed[0].rivals, plan.missed[0].earliest) == ((), run(0, 40, 4))


def test_a_job_that_fits_nowhere_has_no_earliest_run() -> None:
    plan = planned(due(39, INF, INF, 30), slots=3)
    assert (plan.missed[0].rivals, plan.missed[0].earliest) == ((), None)


def test_the_later_deadline_starts_when_the_earlier_job_has_ended() -> None:
    plan = planned(due(100, 50), due(60, 40), slots=1)
    assert plan.met == {1: run(0, 40, 1), 0: run(40, 90, 1)}


def test_jobs_that_fit_together_all_start_now() -> None:
    plan = planned(due(60, 100, 60), due(60, 100, 60), slots=4)
    assert plan.met == {0: run(0, 60, 2), 1: run(0, 60, 2)}


def test_the_longest_job_gives_way_so_that_the_fewest_miss() -> None:
    """The first alone fills the time in which the two others would both end."""
    plan = planned(due(90, 80), due(91, 40), due(92, 45), slots=1)
    assert set(plan.met) == {1, 2}
    assert plan.missed[0].rivals == (1, 2)
    assert plan.missed[0].earliest == run(85, 165, 1)


def test_the_longest_job_is_the_one_with_the_most_slot_seconds_not_the_last() -> None:
    plan = planned(due(60, 60), due(81, 20), due(90, 25), due(95, 40), slots=1)
    assert set(plan.met) == {1, 2, 3}


def test_a_job_that_runs_is_not_swapped_for_one_that_is_shorter() -> None:
    plan = planned(due(90, 80, holds=1), due(91, 40), slots=1)
    assert set(plan.met) == {0}
    assert plan.missed[1].rivals == (0,)


def test_between_equals_the_earlier_deadline_wins() -> None:
    assert set(planned(due(91, 80), due(90, 80), slots=1).met) == {1}


def test_a_promise_is_kept_even_if_more_jobs_miss() -> None:
    plan = planned(due(90, 80, promised=True), due(91, 40), due(92, 45), slots=1)
    assert set(plan.met) == {0}
    assert plan.missed[1].rivals == plan.missed[2].rivals == (0,)


def test_a_promise_precedes_an_earlier_deadline_and_a_running_job() -> None:
    assert set(planned(due(50, 40, holds=1), due(60, 50, promised=True), slots=1).met) == {1}


def test_a_later_promise_does_not_break_an_earlier_one() -> None:
    first = due(30, 25, promised=True, age_s=100)
    plan = planned(first, due(12, 10, promised=True), slots=1)
    assert (set(plan.met), plan.missed[1].rivals) == ({0}, (0,))
    both = planned(replace(first, left_s=35.0), due(12, 10, promised=True), slots=1)
    assert both.met == {1: run(0, 10, 1), 0: run(10, 35, 1)}


@pytest.mark.parametrize(("run_s", "met"), [(19, True), (20, False)])
def test_a_promise_precedes_runs_that_began_after_it(run_s: float, met: bool) -> None:
    plan = planned(
        Due(late_s=(500, INF, INF), holds=1, run_s=run_s), due(60, 50, promised=True, age_s=20), slots=1
    )
    assert (1 in plan.met) is met
    unpromised = planned(Due(late_s=(500, INF, INF), holds=1, run_s=run_s), due(60, 50, age_s=20), slots=1)
    assert unpromised.missed[1].rivals == (0,)


@pytest.mark.parametrize(("stays_s", "met"), [(7, {1, 2}), (8, {0})])
def test_a_displaced_job_keeps_its_slots_for_its_minimum_run_time(stays_s: float, met: set[int]) -> None:
    """The two others, 85 s together, end in time if they begin within 7 s."""
    plan = planned(due(90, 80, holds=1, stays_s=stays_s), due(91, 40), due(92, 45), slots=1)
    assert set(plan.met) == met
    assert min(one.start_s for one in plan.met.values()) == (0 if met == {0} else stays_s)


def test_a_job_that_is_planned_for_later_runs_on_for_its_minimum_run_time() -> None:
    plan = planned(due(200, 80, holds=1, stays_s=20), due(60, 40), slots=1)
    assert plan.met == {1: run(20, 60, 1), 0: run(60, 140, 1)}
    plan = planned(due(200, 80, holds=1, stays_s=21), due(60, 40), slots=1)
    assert (set(plan.met), plan.missed[1].rivals) == ({0}, (0,))


def test_a_promise_counts_the_minimum_run_times_of_its_submit_only() -> None:
    runs = due(90, 80, holds=1, stays_s=50, run_s=10)
    assert set(planned(runs, due(60, 50, promised=True, age_s=10), slots=1).met) == {0}
    assert set(planned(runs, due(60, 50, promised=True, age_s=11), slots=1).met) == {1}


def test_a_higher_priority_displaces_at_once() -> None:
    plan = planned(due(200, 80, holds=1, stays_s=50), due(60, 40, priority=60), slots=1)
    assert plan.met == {1: run(0, 40, 1), 0: run(40, 120, 1)}


def test_a_running_job_without_a_deadline_keeps_its_smallest_size() -> None:
    endless = Due(late_s=(math.nan,) * 3, holds=4)
    assert planned(endless, due(60, 100, 60, 40)).met == {1: run(0, 60, 2)}
    plan = planned(endless, due(50, 100, 60, 40))
    assert plan.missed[1].rivals == (0,)
    assert plan.missed[1].earliest == run(0, 60, 2)


@pytest.mark.parametrize(("priority", "met"), [(49, True), (50, False), (51, False)])
def test_only_a_higher_priority_precedes_a_running_minimum(priority: int, met: bool) -> None:
    endless = Due(late_s=(math.nan,) * 3, holds=1, priority=priority)
    assert (1 in planned(endless, due(60, 50), slots=1).met) is met


def test_a_job_waits_for_the_end_of_a_running_one() -> None:
    ends = Due(late_s=(30.0, INF, INF), holds=1)
    assert planned(ends, due(90, 50), slots=1).met == {1: run(30, 80, 1)}
    assert planned(ends, due(79, 50), slots=1).missed[1].rivals == (0,)


def test_a_running_job_that_cannot_be_in_time_keeps_its_smallest_size() -> None:
    plan = planned(due(20, 30, holds=1), due(90, 50), slots=1)
    assert plan.met == {1: run(30, 80, 1)}
    assert plan.missed[0].rivals == ()


def test_the_smallest_size_precedes_the_earliest_start() -> None:
    """A size that could start now, but takes more slots, is left to others."""
    ends = Due(late_s=(30.0, INF, INF), holds=1)
    assert planned(ends, due(100, 60, 80), slots=3).met == {1: run(0, 60, 1)}
    assert planned(ends, due(100, 60, 20), slots=1).met == {1: run(30, 90, 1)}


def test_a_row_counts_only_its_own_jobs() -> None:
    others = Row(name="quota/p", capacity=1.0, demand=np.array([1.0, 2.0, 4.0]), jobs=np.array([True, False]))
    plan = planned(due(60, 100, 60), due(60, 100, 60), rows=(others,))
    assert plan.met == {1: run(0, 60, 2)}
    assert plan.missed[0].rivals == ()


def test_a_job_without_a_forecast_is_unknown_and_one_without_a_deadline_is_not_planned() -> None:
    unknown = due(60, math.nan, math.nan, INF)
    plan = planned(unknown, Due(late_s=(1.0, 1.0, 1.0)))
    assert (plan.met, plan.missed, plan.unknown) == ({}, {}, frozenset({0}))


def test_the_earliest_deadlines_are_planned() -> None:
    jobs = [due(10_000 - index, 1) for index in range(MOST_PLANNED + 2)]
    plan = planned(*jobs, slots=1)
    assert plan.unknown == {0, 1}
    assert len(plan.met) == MOST_PLANNED


def test_many_ends_are_rounded_up_to_few_moments() -> None:
    """No slot counts as free before its job has ended."""
    ends = [Due(late_s=(float(end), INF, INF), holds=1) for end in range(1, 101)]
    plan = planned(*ends, due(1_000, 10, INF, 10), slots=100)
    found = plan.met[100]
    assert found.column == 0
    assert 1 <= found.start_s <= 3
    four = planned(*ends, due(1_000, INF, INF, 10), slots=100).met[100]
    assert 4 <= four.start_s <= 6


jobs_of_one_slot = st.lists(
    st.builds(lambda length, slack: due(length + slack, length), st.integers(1, 20), st.integers(0, 40)),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(jobs_of_one_slot)
def test_on_one_slot_the_fewest_miss(jobs: list[Due]) -> None:
    assert len(planned(*jobs, slots=1).met) == most_in_time(jobs)


def most_in_time(jobs: Sequence[Due]) -> int:
    """The most jobs of one slot that any order brings to their ends in time."""
    for size in range(len(jobs), 0, -1):
        for chosen in itertools.combinations(jobs, size):
            ends = itertools.accumulate(one.late_s[0] for one in sorted(chosen, key=lambda one: one.left_s))
            ordered = sorted(chosen, key=lambda one: one.left_s)
            if all(end <= one.left_s for end, one in zip(ends, ordered, strict=True)):
                return size
    return 0


def test_the_nearest_deadline_follows_jobs_that_end_after_the_last_deadline() -> None:
    running = [due(INF, 10, holds=1), due(INF, 12, holds=1), due(INF, 15, holds=1), due(INF, 20, holds=1)]
    plan = planned(*running, due(5, INF, 4))
    assert plan.missed[4] == Miss(rivals=(0, 1, 2, 3), earliest=run(12, 16, 2))


@st.composite
def crowds(draw: st.DrawFn) -> list[Due]:
    jobs = []
    for _ in range(draw(st.integers(1, 7))):
        work = draw(st.integers(10, 100))
        jobs.append(
            Due(
                late_s=(float(work), work / 1.8, work / 3.0),
                left_s=draw(st.one_of(st.just(INF), st.integers(5, 150).map(float))),
                promised=draw(st.booleans()),
                priority=draw(st.sampled_from([40, 50])),
            )
        )
    # Running jobs hold one slot each, as far as there are slots.
    running = draw(st.integers(0, min(len(jobs), 4)))
    stays_s = st.sampled_from([0.0, 20.0, INF])
    return [
        replace(one, holds=1, stays_s=draw(stays_s), run_s=draw(st.sampled_from([0.0, 50.0])))
        if index < running
        else one
        for index, one in enumerate(jobs)
    ]


@settings(max_examples=150, deadline=None)
@given(crowds(), st.integers(4, 6))
def test_a_plan_is_in_time_and_within_the_capacity_at_every_moment(jobs: list[Due], slots: int) -> None:
    plan = planned(*jobs, slots=slots)
    with_deadline = {index for index, one in enumerate(jobs) if math.isfinite(one.left_s)}
    assert plan.met.keys() | plan.missed.keys() == with_deadline
    for row, one in plan.met.items():
        assert one.end_s - one.start_s == pytest.approx(jobs[row].late_s[one.column])
        assert one.end_s <= jobs[row].left_s + 1e-6
    for moment in {one.start_s for one in plan.met.values()}:
        active = [one for one in plan.met.values() if one.start_s <= moment < one.end_s]
        assert sum(COLUMNS[one.column] for one in active) <= slots


@settings(max_examples=150, deadline=None)
@given(crowds(), st.integers(4, 6))
def test_nobody_is_vacated_before_the_minimum_run_time(jobs: list[Due], slots: int) -> None:
    jobs = [replace(one, promised=False, priority=50) for one in jobs]
    plan = planned(*jobs, slots=slots)
    in_plan = {*plan.met, *(row for row in plan.missed if min(jobs[row].late_s) <= jobs[row].left_s)}
    stays = [row for row in in_plan if jobs[row].stays_s > 0]
    for moment in {0.0, *(one.start_s for one in plan.met.values())}:
        active = {row: one for row, one in plan.met.items() if one.start_s <= moment < one.end_s}
        waits = [row for row in stays if row not in plan.met or moment < plan.met[row].start_s]
        kept = sum(moment < jobs[row].stays_s for row in waits)
        assert kept + sum(COLUMNS[one.column] for one in active.values()) <= slots


@settings(max_examples=80, deadline=None)
@given(crowds())
def test_a_promised_job_is_planned_as_if_the_others_had_no_deadline(jobs: list[Due]) -> None:
    jobs = [replace(one, holds=0, stays_s=0.0) for one in jobs]
    promised = {index for index, one in enumerate(jobs) if one.promised}
    alone = [one if one.promised else replace(one, left_s=INF) for one in jobs]
    assert planned(*alone).met.keys() & promised == planned(*jobs).met.keys() & promised


def test_a_job_is_in_time_once_one_that_may_not_be_vacated_is_planned_to_end_early() -> None:
    others = [due(INF, 10, 6, 4, holds=1) for _ in range(2)]
    late, early = due(16, 17, 9, 5, holds=1), due(16, 10, 6, 4, holds=1, stays_s=20)
    assert planned(*others, late, early).met == {3: run(0, 10, 1), 2: run(10, 15, 4)}


@settings(max_examples=80, deadline=None)
@given(crowds())
@example(
    [*[due(INF, 10, 6, 4, holds=1)] * 2, due(16, 17, 9, 5, holds=1), due(16, 10, 6, 4, holds=1, stays_s=20)]
)
def test_a_miss_names_an_earliest_run_that_is_late(jobs: list[Due]) -> None:
    for row, miss in planned(*jobs).missed.items():
        assert row not in miss.rivals
        assert miss.earliest is not None
        assert miss.earliest.end_s > jobs[row].left_s
