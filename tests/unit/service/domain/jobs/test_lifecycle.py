"""The table of states: what it allows, where it leads, and that its page tells the truth."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.lifecycle import TRANSITIONS, JobEvent, advance, allows, table
from service.domain.shared.errors import IllegalTransition
from tests.unit.service.builders import LIVE_STATES, NOW, OCCUPYING_STATES, job_of
from tools.pictures import lifecycle

PAGE = Path(__file__).parents[5] / "docs" / "lifecycle.md"
ARROWS = 26
"""One for each pair of states, and one for all states of a box that an event leads from to the same one."""
CELLS = [(state, event) for state in JobState for event in JobEvent]


def reachable_from(state: JobState) -> set[JobState]:
    found, fresh = {state}, {state}
    while fresh:
        fresh = {target for (source, _), target in TRANSITIONS.items() if source in fresh} - found
        found |= fresh
    return found


def step(state: JobState, event: JobEvent) -> JobState:
    return advance(job_of(state=state), event, reason=Reason.ALLOCATED, message="why", now=NOW).state


def test_three_states_are_terminal_and_only_resume_leaves_one() -> None:
    exits = {cell: to for cell, to in TRANSITIONS.items() if cell[0] in TERMINAL_STATES}
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == TERMINAL_STATES
    assert exits == dict.fromkeys(
        [(JobState.FAILED, JobEvent.RESUME), (JobState.CANCELLED, JobEvent.RESUME)], JobState.PENDING
    )


def test_every_state_is_reached_from_the_first() -> None:
    assert reachable_from(JobState.PENDING) == set(JobState)


@pytest.mark.parametrize("state", LIVE_STATES)
def test_every_live_state_leads_to_success_and_to_cancellation(state: JobState) -> None:
    assert {JobState.SUCCEEDED, JobState.CANCELLED} <= reachable_from(state) or state is JobState.CANCELLING
    assert JobState.CANCELLED in reachable_from(state)


@pytest.mark.parametrize("state", LIVE_STATES)
def test_every_live_state_can_be_cancelled(state: JobState) -> None:
    if state is not JobState.CANCELLING:
        holds = state in OCCUPYING_STATES
        assert step(state, JobEvent.CANCEL) is (JobState.CANCELLING if holds else JobState.CANCELLED)


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_the_table_decides_alone(state: JobState, event: JobEvent) -> None:
    assert allows(state, event) is ((state, event) in TRANSITIONS)
    if allows(state, event):
        assert step(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransition, match=f"job job .*is {state}") as refused:
        step(state, event)
    assert ("has already ended" in refused.value.message) is (state in TERMINAL_STATES)


def test_only_a_job_that_holds_nothing_waits_or_is_paused() -> None:
    """PENDING and PAUSED hold no slot; a job that held some comes there only when they are free."""
    into_rest = {
        (source, event)
        for (source, event), target in TRANSITIONS.items()
        if source in OCCUPYING_STATES and target not in OCCUPYING_STATES
    }
    assert {event for _, event in into_rest} <= {
        JobEvent.REQUEUE,
        JobEvent.PAUSE,
        JobEvent.SUCCEED,
        JobEvent.GIVE_UP,
        JobEvent.VANISH,
    }
    assert not TERMINAL_STATES & OCCUPYING_STATES


def test_ranks_start_only_by_a_grant() -> None:
    assert {event for (_, event), to in TRANSITIONS.items() if to is JobState.STARTING} == {JobEvent.ALLOCATE}
    running = {event for (_, event), to in TRANSITIONS.items() if to is JobState.RUNNING}
    assert running == {JobEvent.START, JobEvent.SWITCH, JobEvent.ABANDON}


@settings(max_examples=50)
@given(st.lists(st.sampled_from(JobEvent), max_size=40))
def test_any_history_keeps_the_invariants(events: list[JobEvent]) -> None:
    job = job_of()
    for number, event in enumerate(events, start=1):
        now = NOW + timedelta(seconds=number)
        before = job
        if not allows(job.state, event):
            with pytest.raises(IllegalTransition):
                advance(job, event, reason=Reason.USER_REQUEST, message="m", now=now)
            continue
        job = advance(job, event, reason=Reason.USER_REQUEST, message=f"m{number}", now=now)
        assert before.state not in TERMINAL_STATES or event is JobEvent.RESUME
        assert (job.finished_at is not None) is (job.state in TERMINAL_STATES)
        assert (job.state_since, job.message, job.reason) == (now, f"m{number}", Reason.USER_REQUEST)
        assert job.submitted_at == before.submitted_at
        assert (job.generation, job.allocation) == (before.generation, before.allocation)


def test_a_step_leaves_its_input_as_it_was() -> None:
    job = job_of()
    advance(job, JobEvent.CANCEL, reason=Reason.USER_REQUEST, message="m", now=NOW)
    assert job == job_of()


def test_the_page_shows_the_table() -> None:
    assert f"\n\n{table()}\n\n" in PAGE.read_text()


def test_the_table_of_the_page_has_every_edge() -> None:
    rows = re.findall(r"^\| ([A-Z]+) \| (.*) \|$", table(), flags=re.MULTILINE)
    steps = [
        (state, step.split(": ")) for state, cell in rows for step in cell.split(", ") if cell != "nothing"
    ]
    assert {(JobState(state), JobEvent(event)): JobState(to) for state, (event, to) in steps} == TRANSITIONS
    assert len(steps) == len(TRANSITIONS)


def test_the_picture_names_every_state_and_event() -> None:
    drawn = lifecycle()
    assert [word for word in [*JobState, *JobEvent] if not re.search(rf"\b{word}\b", drawn)] == []
    assert drawn.count("marker-end") == ARROWS


def test_the_page_has_a_paragraph_on_every_state_and_event() -> None:
    described = re.findall(r"^\*\*(\w+)\*\*: \S", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(described) == sorted([*map(str, JobState), *map(str, JobEvent)])
