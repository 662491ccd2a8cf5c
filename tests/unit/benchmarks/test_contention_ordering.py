"""The measures of benchmarks.contention that are about priorities and returns to the same slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.contending.history import Held, Past
from benchmarks.contending.measures import measures
from benchmarks.contending.streams import STREAMS
from tests.unit.benchmarks.test_contention import past, vacate

STOPPED = ((0.0, "allocate"), vacate(30.0, 1), (31.0, "requeue"), (50.0, "allocate"), (200.0, "succeed"))


def found(*pasts: Past, slots: int = 2, held: tuple[Held, ...] = ()) -> dict[str, float]:
    return measures(pasts, slots, [one.completion_s for one in pasts], held)


def with_priority(one: Past, priority: int, minimum: int = 1) -> Past:
    return replace(one, priority=priority, minimum=minimum)


@pytest.mark.parametrize(("submitted_s", "priority", "early"), [(10.0, 70, 0), (10.0, 50, 1), (-10.0, 70, 1)])
def test_a_stop_for_a_priority_submitted_after_the_turn_began_is_not_early(
    submitted_s: float, priority: int, early: int
) -> None:
    heir = with_priority(past("heir", submitted_s, (31.0, "allocate"), (50.0, "succeed")), priority)
    held = (Held(0, "own", 0.0, 31.0), Held(0, "heir", 31.0, 50.0), Held(0, "own", 50.0, 200.0))
    assert found(past("own", 0.0, *STOPPED), heir, held=held)["early_vacates"] == early


@pytest.mark.parametrize(("back_s", "slot", "returns"), [(50.0, 0, 1), (95.0, 0, 0), (50.0, 1, 0)])
def test_a_job_that_gets_its_own_slot_again_within_a_minute_evicted_itself(
    back_s: float, slot: int, returns: int
) -> None:
    held = (Held(0, "own", 0.0, 31.0), Held(slot, "own", back_s, 200.0))
    assert found(past("own", 0.0, *STOPPED), held=held)["self_evictions"] == returns


def test_a_slot_that_another_job_had_in_between_is_no_self_eviction() -> None:
    held = (Held(0, "own", 0.0, 31.0), Held(0, "other", 31.0, 49.0), Held(0, "own", 50.0, 200.0))
    other = past("other", 5.0, (31.0, "allocate"), (49.0, "succeed"))
    assert found(past("own", 0.0, *STOPPED), other, held=held)["self_evictions"] == 0


@pytest.mark.parametrize(("heir_s", "returns"), [(31.0, 0), (50.0, 1)])
def test_a_job_that_starts_again_once_its_successor_ended_did_not_evict_itself(
    heir_s: float, returns: int
) -> None:
    """The successor had one of its two slots, before the job came back or only then."""
    held = (Held(0, "own", 0.0, 31.0), Held(1, "own", 0.0, 31.0), Held(0, "own", 50.0, 200.0))
    heir = (Held(1, "other", heir_s, heir_s + 15.0), Held(1, "own", 100.0, 200.0))
    other = past("other", 5.0, (heir_s, "allocate"), (heir_s + 15.0, "succeed"))
    assert found(past("own", 0.0, *STOPPED), other, held=(*held, *heir))["self_evictions"] == returns


def waits_beside(*lower: Past, minimum: int = 1, until_s: float = 300.0) -> float:
    """Violations while a job of priority 70 waits from 0 s until `until_s` and runs for 10 s."""
    high = past("high", 0.0, (until_s, "allocate"), (until_s + 10.0, "succeed"))
    return found(with_priority(high, 70, minimum), *lower)["order_violations"]


def low(name: str, since_s: float, to_s: float, priority: int = 50) -> Past:
    return with_priority(past(name, since_s, (since_s, "allocate"), (to_s, "succeed")), priority)


def test_each_of_two_small_jobs_in_the_place_of_a_larger_one_is_a_violation() -> None:
    assert waits_beside(low("a", -5.0, 300.0), low("b", -5.0, 300.0), minimum=2) == 2


def test_one_small_job_beside_a_higher_one_leaves_no_room_to_trade() -> None:
    assert waits_beside(low("a", -5.0, 300.0), low("b", -5.0, 300.0, priority=90), minimum=2) == 0


def test_a_job_of_the_same_priority_may_run_longer() -> None:
    assert waits_beside(low("a", -5.0, 300.0, priority=70), low("b", -5.0, 300.0, priority=90)) == 0


def test_a_turn_that_began_after_the_submit_counts_only_beyond_the_minimum_run_time() -> None:
    """The events of another job divide the turn: its first 60 s are its own."""
    busy = low("b", -5.0, 300.0, priority=90)
    clock = low("c", 65.0, 66.0, priority=90)
    assert waits_beside(low("a", 5.0, 60.0), busy, until_s=60.0) == 0
    assert waits_beside(low("a", 5.0, 300.0), busy, clock) == 1


def test_streams_of_several_priorities_have_no_ratio_and_hold_minimums_of_several_slots() -> None:
    jobs = [with_priority(past("a", 0.0, *STOPPED), 10), past("b", 0.0, *STOPPED)]
    assert "time_ratio" not in found(*jobs)
    assert "time_ratio" in found(jobs[1])
    for name in ("minimums", "many-small"):
        stream = STREAMS[name]
        specs = [stream.spec(job, "scripts/sharing.py") for job in stream.jobs]
        assert max(spec.elastic.min for spec in specs) == 2
        assert len({spec.priority for spec in specs}) >= 4
        assert sum(spec.elastic.min for spec in specs) > stream.slots
