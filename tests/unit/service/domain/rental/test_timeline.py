"""Tests of the phases of a job, by examples of its history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from headway.contract.views.jobs import JobState
from headway.contract.views.money import Category
from service.domain.jobs.lifecycle import JobEvent
from service.domain.rental.timeline import (
    FIRST_STEP,
    FOR_EVER,
    MARKS,
    PHASE_MARKS,
    RESTORE,
    UNKNOWN_RATE,
    Phase,
    TimelineEvent,
    first_difference_us,
    phases_of,
)

S = 1_000_000
_S, _E = JobState, JobEvent
USEFUL, RESIZE, LOST, UNKNOWN = Category.USEFUL, Category.RESIZE, Category.LOST, Category.UNKNOWN
EVER = FOR_EVER / S

Row = tuple[float, float, Category, int, str]


def mark(
    sequence: int, at_s: float, kind: str, state: JobState, generation: int = 1, **more: object
) -> TimelineEvent:
    return TimelineEvent(
        sequence=sequence,
        at_us=round(at_s * S),
        kind=kind,
        state=state,
        generation=generation,
        **more,  # type: ignore[arg-type]
    )


def rows(marks: Sequence[TimelineEvent]) -> list[Row]:
    """The phases, in seconds."""
    return [
        (one.from_us / S, one.to_us / S, one.category, one.generation, one.cause) for one in phases_of(marks)
    ]


ALLOCATED = mark(1, 10, _E.ALLOCATE, _S.STARTING)
START = mark(2, 12, _E.START, _S.RUNNING)
STEP = mark(3, 15, FIRST_STEP, _S.RUNNING)
TRAINS = (ALLOCATED, START, STEP)
"""The ranks import for 3 s, and train from 15 s on."""
BEGINS: list[Row] = [(10, 15, RESIZE, 0, "")]
RECOVERY = (
    mark(4, 50, _E.FAIL_RANK, _S.RECOVERING, reason="NODE_LOST"),
    mark(5, 53, _E.ALLOCATE, _S.STARTING, 2),
    mark(6, 55, _E.START, _S.RUNNING, 2),
)


def test_a_job_without_events_has_no_phases() -> None:
    assert phases_of([]) == ()


def test_every_event_of_the_life_cycle_begins_a_phase() -> None:
    assert set(PHASE_MARKS) == set(JobEvent)
    assert set(MARKS) - set(PHASE_MARKS) == {FIRST_STEP, RESTORE}


@pytest.mark.parametrize(
    ("event", "state", "category"),
    [
        (_E.ALLOCATE, _S.STARTING, RESIZE),
        (_E.PREPARE, _S.RESIZING, USEFUL),
        (_E.SWITCH, _S.RUNNING, USEFUL),
        (_E.ABANDON, _S.RUNNING, USEFUL),
        (_E.LOSE, _S.RECOVERING, LOST),
        (_E.FAIL_RANK, _S.RECOVERING, LOST),
        (_E.VACATE, _S.RESIZING, RESIZE),
        (_E.REQUEUE, _S.PENDING, RESIZE),
        (_E.PAUSE, _S.PAUSED, RESIZE),
        (_E.CANCEL, _S.CANCELLING, RESIZE),
        (_E.SUCCEED, _S.SUCCEEDED, RESIZE),
        (_E.GIVE_UP, _S.FAILED, RESIZE),
    ],
)
def test_the_category_of_the_time_after_each_event(
    event: JobEvent, state: JobState, category: Category
) -> None:
    generation = 7 if category is USEFUL else 0
    cause = "HUNG" if category is LOST else ""
    found = rows([mark(1, 5, event, state, 7, reason="HUNG")])
    assert found == [(5, EVER, category, generation, cause)]


@pytest.mark.parametrize(
    ("after_start", "expected"),
    [
        ([], [(10, 12, RESIZE, 0, ""), (12, EVER, UNKNOWN, 1, "")]),
        ([STEP], [*BEGINS, (15, EVER, USEFUL, 1, "")]),
        (
            [mark(3, 15, FIRST_STEP, _S.RUNNING, plain=True)],
            [(10, 12, RESIZE, 0, ""), (12, 15, UNKNOWN, 1, ""), (15, EVER, USEFUL, 1, "")],
        ),
        (
            [mark(3, 14, RESTORE, _S.RUNNING), mark(4, 15, FIRST_STEP, _S.RUNNING)],
            [*BEGINS, (15, EVER, USEFUL, 1, "")],
        ),
        (
            [mark(3, 15, FIRST_STEP, _S.RUNNING, 2)],
            [(10, 12, RESIZE, 0, ""), (12, 15, UNKNOWN, 1, ""), (15, EVER, USEFUL, 2, "")],
        ),
        (
            [mark(3, 14, _E.VACATE, _S.RESIZING), mark(4, 15, FIRST_STEP, _S.RESIZING)],
            [(10, 12, RESIZE, 0, ""), (12, 14, USEFUL, 1, ""), (14, EVER, RESIZE, 0, "")],
        ),
        (
            [mark(3, 14, _E.VACATE, _S.RESIZING)],
            [(10, 12, RESIZE, 0, ""), (12, 14, UNKNOWN, 1, ""), (14, EVER, RESIZE, 0, "")],
        ),
    ],
    ids=["no step", "library", "plain", "restored", "other generation", "late step", "stopped"],
)
def test_the_time_between_a_start_and_its_first_step(
    after_start: list[TimelineEvent], expected: list[Row]
) -> None:
    assert rows([ALLOCATED, START, *after_start]) == expected


def test_a_first_step_of_a_job_that_trains_already_changes_nothing() -> None:
    again = mark(4, 20, FIRST_STEP, _S.RUNNING)
    assert rows([*TRAINS, again]) == rows(TRAINS)


@pytest.mark.parametrize(
    ("pause_s", "useful_until"),
    [(0.0, 50), (1.0, 49), (35.0, 15), (10_000.0, 15), (1e300, 15)],
)
def test_a_pause_before_a_switch_is_resize_within_the_training_before_it(
    pause_s: float, useful_until: float
) -> None:
    found = rows(
        [
            *TRAINS,
            mark(4, 40, _E.PREPARE, _S.RESIZING),
            mark(5, 50, _E.SWITCH, _S.RUNNING, 2, pause_s=pause_s),
        ]
    )
    resized = [(useful_until, 50, RESIZE, 1, "")] if useful_until < 50 else []
    trained = [(15, useful_until, USEFUL, 1, "")] if useful_until > 15 else []
    assert found == [*BEGINS, *trained, *resized, (50, EVER, USEFUL, 2, "")]


def test_only_a_switch_ends_a_pause() -> None:
    stop = mark(4, 50, _E.VACATE, _S.RESIZING, pause_s=5.0)
    assert rows([*TRAINS, stop]) == [*BEGINS, (15, 50, USEFUL, 1, ""), (50, EVER, RESIZE, 0, "")]


def test_a_pause_after_a_loss_is_lost_for_its_cause() -> None:
    found = rows(
        [
            *TRAINS,
            mark(4, 50, _E.LOSE, _S.RECOVERING, reason="SPOT_RECLAIMED"),
            mark(5, 52, _E.SWITCH, _S.RUNNING, 2, pause_s=7.0),
        ]
    )
    assert found == [
        *BEGINS,
        (15, 45, USEFUL, 1, ""),
        (45, 50, LOST, 1, "SPOT_RECLAIMED"),
        (50, 52, LOST, 0, "SPOT_RECLAIMED"),
        (52, EVER, USEFUL, 2, ""),
    ]


@pytest.mark.parametrize("kind", [FIRST_STEP, RESTORE])
@pytest.mark.parametrize(
    ("lost_s", "useful_until"),
    [(8.0, 42), (35.0, 15), (1e9, 15), (UNKNOWN_RATE, 15)],
)
def test_training_to_repeat_is_lost_by_the_cause_of_the_failure(
    kind: str, lost_s: float, useful_until: float
) -> None:
    again = [mark(7, 56, kind, _S.RUNNING, 2, lost_s=lost_s)]
    if kind == RESTORE:
        again.append(mark(8, 57, FIRST_STEP, _S.RUNNING, 2))
    found = rows([*TRAINS, *RECOVERY, *again])
    trained = [(15, useful_until, USEFUL, 1, "")] if useful_until > 15 else []
    assert found == [
        *BEGINS,
        *trained,
        (useful_until, 50, LOST, 1, "NODE_LOST"),
        (50, 53, LOST, 0, "NODE_LOST"),
        (53, 56 if kind == FIRST_STEP else 57, RESIZE, 0, ""),
        (56 if kind == FIRST_STEP else 57, EVER, USEFUL, 2, ""),
    ]


def test_training_to_repeat_after_a_stop_without_a_failure_is_lost_by_the_restart() -> None:
    stop = [
        mark(4, 50, _E.VACATE, _S.RESIZING),
        mark(5, 53, _E.ALLOCATE, _S.STARTING, 2),
        mark(6, 55, _E.START, _S.RUNNING, 2),
        mark(7, 58, FIRST_STEP, _S.RUNNING, 2, lost_s=10.0),
    ]
    assert (40, 50, LOST, 1, "RESTART") in rows([*TRAINS, *stop])


def test_a_second_failure_repeats_only_what_was_trained_since_the_first_that_counts() -> None:
    """The second restart repeats 20 s: 15 s of generation 2 and 5 s of generation 1, past the recovery."""
    again = [
        mark(7, 56, FIRST_STEP, _S.RUNNING, 2),
        mark(8, 71, _E.FAIL_RANK, _S.RECOVERING, 2, reason="HUNG"),
        mark(9, 73, _E.ALLOCATE, _S.STARTING, 3),
        mark(10, 74, _E.START, _S.RUNNING, 3),
        mark(11, 75, FIRST_STEP, _S.RUNNING, 3, lost_s=20.0),
    ]
    found = rows([*TRAINS, *RECOVERY, *again])
    assert [row for row in found if row[2] is LOST] == [
        (45, 50, LOST, 1, "HUNG"),
        (50, 53, LOST, 0, "NODE_LOST"),
        (56, 71, LOST, 2, "HUNG"),
        (71, 73, LOST, 0, "HUNG"),
    ]


def test_training_of_the_generation_that_repeats_is_not_lost() -> None:
    """The report of the first step is late: generation 2 has trained for 4 s."""
    late = [
        mark(7, 56, FIRST_STEP, _S.RUNNING, 2),
        mark(8, 60, RESTORE, _S.RUNNING, 2, lost_s=8.0),
    ]
    found = rows([*TRAINS, *RECOVERY, *late])
    assert (42, 50, LOST, 1, "NODE_LOST") in found
    assert found[-1] == (56, EVER, USEFUL, 2, "")


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_events_count_by_sequence_whatever_their_order(order: tuple[int, ...]) -> None:
    assert phases_of([TRAINS[index] for index in order]) == phases_of(TRAINS)


@pytest.mark.parametrize(
    ("step_at_s", "trains_from_s"),
    [(-1e6, 12), (11, 12), (12, 12), (15, 15), (20, 20), (21, 20), (1e9, 20)],
)
def test_a_nodes_clock_is_limited_to_the_services_times_around_it(
    step_at_s: float, trains_from_s: float
) -> None:
    marks = [
        ALLOCATED,
        START,
        mark(3, step_at_s, FIRST_STEP, _S.RUNNING),
        mark(4, 20, _E.VACATE, _S.RESIZING),
    ]
    trained = [(trains_from_s, 20, USEFUL, 1, "")] if trains_from_s < 20 else []
    until = trains_from_s if trained else EVER
    after = [(20, EVER, RESIZE, 0, "")] if trained else []
    assert rows(marks) == [(10, until, RESIZE, 0, ""), *trained, *after]


def test_the_services_times_never_decrease() -> None:
    back = [ALLOCATED, mark(2, 5, _E.START, _S.RUNNING), mark(3, 30, _E.VACATE, _S.RESIZING)]
    assert rows(back) == [(10, 30, UNKNOWN, 1, ""), (30, EVER, RESIZE, 0, "")]


def test_equal_neighbours_are_one_phase() -> None:
    idle = [mark(1, 10, _E.PAUSE, _S.PAUSED), mark(2, 20, _E.RESUME, _S.PENDING)]
    assert rows(idle) == [(10, EVER, RESIZE, 0, "")]
    failures = [
        mark(1, 10, _E.FAIL_RANK, _S.RECOVERING, reason="HUNG"),
        mark(2, 20, _E.FAIL_RANK, _S.RECOVERING, reason="NODE_LOST"),
    ]
    assert [row[4] for row in rows(failures)] == ["HUNG", "NODE_LOST"], "each failure has its cause"


def phase(begin: int, end: int, category: Category = USEFUL) -> Phase:
    return Phase(begin, end, category)


@pytest.mark.parametrize(
    ("before", "after", "differs_us"),
    [
        ([], [], None),
        ([phase(0, 5)], [phase(0, 5)], None),
        ([], [phase(3, 5)], 3),
        ([phase(3, 5)], [], 3),
        ([phase(0, 5)], [phase(0, 9)], 5),
        ([phase(0, 9)], [phase(0, 5)], 5),
        ([phase(0, 5)], [phase(0, 5), phase(5, 9, RESIZE)], 5),
        ([phase(0, 5), phase(5, 9, RESIZE)], [phase(0, 5)], 5),
        ([phase(0, 5)], [phase(0, 5, LOST)], 0),
        ([phase(0, 5), phase(5, 9)], [phase(0, 5), phase(5, 9, LOST)], 5),
        ([phase(2, 5)], [phase(1, 5)], 1),
        ([phase(0, 5), phase(5, 9, RESIZE)], [phase(0, 3), phase(3, 9, RESIZE)], 3),
    ],
)
def test_the_first_moment_at_which_two_histories_differ(
    before: list[Phase], after: list[Phase], differs_us: int | None
) -> None:
    assert first_difference_us(before, after) == differs_us
