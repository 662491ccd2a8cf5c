"""The bookkeeping of a life: slots, stores, exits, allocations and events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.job import Allocation
from service.domain.jobs.lifecycle import JobEvent
from service.domain.life.effects import (
    AddAllocation,
    CallRound,
    EndAllocation,
    Held,
    RecordEvent,
    ReleaseSlots,
    StoreExit,
)
from service.domain.life.life import Footprint, Life
from service.domain.shared.errors import IllegalTransition
from tests.unit.service.domain.life.scenes import (
    TWO,
    event_of,
    exit_of,
    life_of,
    ordered,
    prepared,
    training,
    waiting,
)

HELD: Held = {1: {"n0": (0, 1), "n1": (0,)}, 2: {"n1": (1,)}}


def holding(held: Held = HELD, newest: int = 2) -> Life:
    life = life_of(waiting())
    stores = {("n0", 1): 20_001, ("n1", 1): 20_002, ("n1", 2): 20_003}
    job = replace(life.job, generation=newest, newest_generation=newest)
    return replace(life, job=job, footprint=Footprint(held=held, stores=stores))


@pytest.mark.parametrize(
    ("generation", "node", "slots", "expected"),
    [
        (1, None, None, {"n0": (0, 1), "n1": (0,)}),
        (1, "n0", None, {"n0": (0, 1)}),
        (1, "n0", [1, 7], {"n0": (1,)}),
        (1, None, [0], {"n0": (0,), "n1": (0,)}),
        (1, "n2", None, {}),
        (1, "n1", [1], {}),
        (3, None, None, {}),
    ],
)
def test_releasable_names_only_held_slots(
    generation: int, node: str | None, slots: list[int] | None, expected: Allocation
) -> None:
    assert holding().releasable(generation, node, slots) == expected


def test_releasing_a_node_leaves_the_rest_of_its_start_and_its_stores() -> None:
    life = holding().released(1, "n0")
    assert life.loaded_footprint.held == {1: {"n1": (0,)}, 2: {"n1": (1,)}}
    assert set(life.loaded_footprint.stores) == {("n0", 1), ("n1", 1), ("n1", 2)}
    assert life.effects == (ReleaseSlots(generation=1, node_id="n0", next_generation=3),)


def test_stores_of_a_start_go_with_its_last_slot() -> None:
    life = holding().released(1)
    assert life.loaded_footprint.held == {2: {"n1": (1,)}}
    assert set(life.loaded_footprint.stores) == {("n1", 2)}
    assert life.effects == (ReleaseSlots(generation=1, node_id=None, next_generation=3),)


def test_releasing_single_slots_keeps_the_others_of_the_node() -> None:
    life = holding().released(1, "n0", slots=[1])
    assert life.loaded_footprint.held == {1: {"n0": (0,), "n1": (0,)}, 2: {"n1": (1,)}}


def test_slots_that_are_carried_over_pass_to_the_next_start() -> None:
    life = holding().released(1, "n0", carry_over={"n0": (1,), "n1": (0,)})
    assert life.loaded_footprint.held == {1: {"n1": (0,)}, 2: {"n1": (1,)}, 3: {"n0": (1,)}}
    (effect,) = life.effects
    assert isinstance(effect, ReleaseSlots)
    assert effect.carry_over == {"n0": (1,), "n1": (0,)}
    assert effect.next_generation == 3


def test_releasing_nothing_changes_nothing() -> None:
    life = holding()
    assert life.released(3) is life
    assert life.released(1, "n2") is life
    assert life.released(1, "n0", slots=[5]) is life


def test_a_grant_joins_what_the_next_start_has() -> None:
    life = holding().released(1, "n0", carry_over={"n0": (1,)}).settled()
    life = life.with_grant({"n0": (0,), "n2": (0, 1)})
    assert life.loaded_footprint.held[3] == {"n0": (0, 1), "n2": (0, 1)}
    assert life.effects == ()


def test_an_empty_grant_adds_no_generation() -> None:
    assert set(holding().with_grant({}).loaded_footprint.held) == {1, 2}


def test_only_the_first_end_of_a_process_counts() -> None:
    first = exit_of(3, exit_code=0)
    life = holding().with_exit(1, first)
    assert life.loaded_footprint.exits == {(1, 3): first}
    assert life.effects == (StoreExit(1, first),)
    assert life.with_exit(1, exit_of(3, signal=9)) is life
    assert life.with_exit(2, exit_of(3, signal=9)).loaded_footprint.exits[2, 3].signal == 9


@pytest.mark.parametrize(
    ("held", "gone"),
    [({}, True), ({3: {"n0": (0,)}}, True), ({2: {"n0": (0,)}}, False), ({1: {"n0": (0,)}}, False)],
)
def test_a_job_is_gone_while_only_its_next_start_holds_slots(held: Held, *, gone: bool) -> None:
    assert holding(held).is_gone is gone


def test_an_allocation_adds_its_stores() -> None:
    life = life_of(training())
    record = replace(life.generations[1], generation=2, stores={"n1": 20_009})
    after = life.with_allocation(record)
    assert after.loaded_footprint.stores == {**life.loaded_footprint.stores, ("n1", 2): 20_009}
    assert set(after.generations) == {1, 2}
    assert after.effects == (AddAllocation(record),)
    assert after.without_allocation(1).effects[1:] == (EndAllocation(1),)


def test_an_event_of_the_lifecycle_moves_the_job_and_calls_a_round() -> None:
    life = life_of(waiting())
    life = replace(life, now=life.now + timedelta(seconds=5))
    after = life.advanced(JobEvent.ALLOCATE, reason=Reason.ALLOCATED, message="room", data={"slots": 2})
    assert (after.job.state, after.job.reason, after.job.state_since) == (
        JobState.STARTING,
        Reason.ALLOCATED,
        life.now,
    )
    event = event_of(after, "allocate")
    assert (event.state, event.reason, event.data) == (JobState.STARTING, Reason.ALLOCATED, {"slots": 2})
    assert after.effects == (RecordEvent(after.job, event), CallRound())
    assert after.settled().effects == ()


def test_an_event_that_the_lifecycle_lacks_is_refused() -> None:
    with pytest.raises(IllegalTransition):
        life_of(waiting()).advanced(JobEvent.SWITCH, reason=Reason.PROGRESSING, message="no")


def test_a_note_leaves_the_job_as_it_is() -> None:
    life = life_of(training())
    earlier = life.now - timedelta(seconds=3)
    after = life.noted("restore", message="restored", at=earlier)
    event = event_of(after, "restore")
    assert after.job is life.job
    assert (event.at, event.state, event.generation) == (earlier, JobState.RUNNING, 1)
    assert (event.reason, event.data) == (None, {})
    assert event_of(life.noted("x", message="y"), "x").at == life.now


def test_a_crew_knows_the_coming_members_once_a_change_begins() -> None:
    alone, before, after = (life_of(one).crew for one in (training(), prepared(), ordered()))
    assert [one.rank for one in alone.running] == [0, 1]
    assert (alone.next_generation, alone.coming, alone.ordered) == (None, (), False)
    assert (before.next_generation, len(before.coming), before.ordered) == (2, 3, False)
    assert (after.generation, after.next_generation, after.ordered) == (1, 2, True)


def test_a_crew_before_the_first_start_is_empty() -> None:
    life = life_of(waiting())
    assert life.running is None
    assert (life.crew.generation, life.crew.running) == (0, ())


def test_a_footprint_must_have_been_loaded() -> None:
    life = life_of(training(TWO))
    with pytest.raises(AssertionError):
        _ = replace(life, footprint=None).loaded_footprint
