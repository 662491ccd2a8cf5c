"""The table of one job: what it may be given now, and what each choice is worth."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.jobs import JobProgress, JobState
from service.domain.allocation.configurations import (
    IDLE_PENALTY,
    LIVE_CHANGE_S,
    MIN_RUNTIME_S,
    RESTART_S,
    SILENT_S,
    JobTable,
    build_table,
    is_movable,
    is_waiting,
    weight_of,
)
from service.domain.cluster import Measurement, Node, SlotKey, Snapshot
from service.domain.jobs import Job
from tests.unit.service.builders import LIVE_STATES, NOW, job_of, node_of, snapshot_of, spec_of


def sizes(table: JobTable) -> list[int]:
    return [row.slots for row in table.rows]


def elastic(low: int = 1, high: int = 8, **rest: Any) -> dict[str, Any]:
    return {"elastic": {"min": low, "max": high, **rest}}


def running(size: int = 2, speed: float = 100.0, age_s: float = 600.0, **spec: Any) -> tuple[Snapshot, Job]:
    """A job on `size` slots of one node of eight, measured there (not at all when `speed` is zero)."""
    job = job_of("j", JobState.RUNNING, age_s=age_s, spec=spec_of("j", **(spec or elastic())))
    held = [("n", slot) for slot in range(size)]
    measured = {"j": (Measurement("cpu", size, speed, 100),)} if speed else {}
    return snapshot_of([node_of("n", slots=8)], [job], {"j": held}, measured), job


@pytest.mark.parametrize("state", LIVE_STATES)
def test_who_may_be_started(state: JobState) -> None:
    job = job_of("j", state)
    starts = state in {JobState.PENDING, JobState.RECOVERING}
    assert is_waiting(job, snapshot_of([], [job])) is starts
    holding = snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})
    assert not is_waiting(job, holding), "its old processes still run"


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"retry_at": NOW - timedelta(seconds=1)}, True),
        ({"retry_at": NOW}, True),
        ({"retry_at": NOW + timedelta(seconds=1)}, False),
        ({"pause_requested": True}, False),
    ],
)
def test_a_job_that_backs_off_or_pauses_is_not_started(fields: dict[str, Any], waits: bool) -> None:
    job = job_of("j", JobState.RECOVERING, **fields)
    assert is_waiting(job, snapshot_of([], [job])) is waits


@pytest.mark.parametrize("state", LIVE_STATES)
@pytest.mark.parametrize("resize", ["live", "restart", "never"])
def test_who_may_be_moved(state: JobState, resize: str) -> None:
    job = job_of("j", state, spec=spec_of("j", elastic={"resize": resize}))
    whole = snapshot_of([node_of("n")], [job], held={"j": [("n", 0), ("n", 1)]})
    assert is_movable(whole.jobs["j"], whole) is (state is JobState.RUNNING and resize != "never")
    left = replace(whole, held={SlotKey("n", 0): "j"})
    assert not is_movable(left.jobs["j"], left), "a generation that is ending was taken for a smaller one"


@pytest.mark.parametrize(("priority", "weight"), [(50, 1.0), (75, 2.0), (25, 0.5), (100, 4.0), (0, 0.25)])
def test_priority_doubles_the_weight_every_25_points(priority: int, weight: float) -> None:
    job = job_of(spec=spec_of(priority=priority))
    assert weight_of(job, snapshot_of([], [job])) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("waited_s", "weight"), [(0, 1.0), (300, 1.25), (600, 1.5), (10**6, 1.5), (-60, 1.0)]
)
def test_waiting_adds_half_of_the_weight_at_most(waited_s: float, weight: float) -> None:
    job = job_of(age_s=waited_s)
    assert weight_of(job, snapshot_of([], [job])) == pytest.approx(weight)
    started = job_of(state=JobState.RUNNING, age_s=waited_s)
    assert weight_of(started, snapshot_of([], [started])) == 1.0


def test_an_unknown_job_is_offered_its_smallest_size() -> None:
    job = job_of("j", spec=spec_of("j", **elastic(2, 8)))
    table = build_table(job, snapshot_of([node_of("n", slots=8)], [job]))
    assert sizes(table) == [2]
    assert (table.idle_utility, table.current_size, table.keepable) == (0.0, 0, ())
    assert table.rows[0].utility == pytest.approx(math.log1p(2**0.9))


def test_a_rigid_job_is_offered_every_size_since_it_can_never_grow() -> None:
    job = job_of("j", spec=spec_of("j", **elastic(1, 3, resize="never")))
    assert sizes(build_table(job, snapshot_of([node_of("n", slots=8)], [job]))) == [1, 2, 3]


def test_a_measured_job_may_double() -> None:
    snapshot, job = running(2)
    assert sizes(build_table(job, snapshot)) == [1, 2, 3, 4]


def test_a_plain_script_that_never_reports_is_not_held_back_for_ever() -> None:
    young, job = running(1, speed=0.0, age_s=SILENT_S - 1)
    assert sizes(build_table(job, young)) == [1]
    silent, job = running(1, speed=0.0, age_s=SILENT_S)
    assert sizes(build_table(job, silent)) == list(range(1, 9))


def test_a_pinned_job_has_two_choices() -> None:
    snapshot, job = running(2)
    pinned = job_of("j", JobState.RUNNING, spec=job.spec, age_s=600, pinned_size=5)
    table = build_table(pinned, snapshot)
    assert sizes(table) == [2, 5]
    five = next(row for row in table.rows if row.slots == 5)
    assert five.utility > IDLE_PENALTY, "what its user asked for is worth more than any gain in speed"


def test_a_pinned_job_that_waits_takes_that_size_or_nothing() -> None:
    job = job_of("j", spec=spec_of("j", **elastic()), pinned_size=5)
    assert sizes(build_table(job, snapshot_of([node_of("n", slots=8)], [job]))) == [5]


def test_staying_costs_nothing_and_changing_costs_a_restart() -> None:
    snapshot, job = running(2)
    table = build_table(job, snapshot)
    by_size = {row.slots: row.utility for row in table.rows}
    speedup = {one.slots: one.speedup for one in table.options}
    assert by_size[2] == pytest.approx(math.log1p(speedup[2]))
    assert by_size[4] == pytest.approx(math.log1p(speedup[4] * (1 - RESTART_S / 120)))
    assert table.idle_utility == -IDLE_PENALTY


def test_growing_needs_a_gain() -> None:
    snapshot, job = running(4)
    flat = (Measurement("cpu", 4, 100.0, 100), Measurement("cpu", 8, 104.0, 100))
    snapshot = snapshot_of(
        snapshot.nodes.values(), [job], {"j": [("n", slot) for slot in range(4)]}, {"j": flat}
    )
    table = build_table(job, snapshot)
    assert max(sizes(table)) == 4
    (eight,) = [one for one in table.options if one.slots == 8]
    assert eight.note == "less than 5% faster than now: not worth a restart"


def test_a_job_that_just_started_is_shrunk_at_most() -> None:
    snapshot, job = running(2, age_s=MIN_RUNTIME_S - 1)
    table = build_table(job, snapshot)
    assert sizes(table) == [1, 2]
    assert {one.note for one in table.options if one.slots > 2} == {
        "started 9 s ago; a change waits until 10 s"
    }


def test_every_size_considered_is_shown_whether_it_may_be_chosen_or_not() -> None:
    snapshot, job = running(2, age_s=1)
    table = build_table(job, snapshot)
    assert [one.slots for one in table.options] == [1, 2, 3, 4]
    assert [one.note for one in table.options if one.slots == 2] == ["current"]


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (NodeState.READY, 2),
        (NodeState.CORDONED, 2),
        (NodeState.DRAINING, 0),
        (NodeState.DRAINED, 0),
        (NodeState.LOST, 0),
    ],
)
def test_what_may_be_kept(state: NodeState, kept: int) -> None:
    job = job_of("j", JobState.RUNNING, age_s=600, spec=spec_of("j", **elastic(2, 2)))
    snapshot = snapshot_of([node_of("n", state=state)], [job], {"j": [("n", 0), ("n", 1)]})
    table = build_table(job, snapshot)
    assert len(table.keepable) == kept
    assert table.current_size == 2


def test_slots_on_a_cordoned_node_take_nothing_from_others() -> None:
    job = job_of("j", JobState.RUNNING, age_s=600, spec=spec_of("j", **elastic(1, 4)))
    nodes = [node_of("old", state=NodeState.CORDONED), node_of("new", slots=4)]
    measured = {"j": (Measurement("cpu", 2, 100.0, 100),)}
    table = build_table(job, snapshot_of(nodes, [job], {"j": [("old", 0), ("old", 1)]}, measured))
    assert {row.slots: row.demand for row in table.rows} == {1: 0, 2: 0, 3: 1, 4: 2}


def test_a_slot_that_its_node_no_longer_has_cannot_be_kept() -> None:
    job = job_of("j", JobState.RUNNING, age_s=600, spec=spec_of("j", **elastic(1, 2)))
    node = Node(id="n", name="n", state=NodeState.READY, slots={1: "cpu", 2: "cpu"})
    table = build_table(job, snapshot_of([node], [job], {"j": [("n", 0), ("n", 1)]}))
    assert (table.keepable, table.current_size, table.current_kind) == ((SlotKey("n", 1),), 2, "cpu")


@pytest.mark.parametrize(
    ("devices", "kinds"),
    [([], ["a100", "cpu"]), (["cpu"], ["cpu"]), (["h100", "a100"], ["a100"]), (["h100"], [])],
)
def test_only_kinds_that_are_wanted_and_there(devices: list[str], kinds: list[str]) -> None:
    job = job_of("j", spec=spec_of("j", resources={"devices": devices}))
    table = build_table(job, snapshot_of([node_of("a", kind="a100"), node_of("c")], [job]))
    assert [row.device_kind for row in table.rows] == kinds


def live(size: int, age_s: float = 0.0, elastic_: dict[str, Any] | None = None, **fields: Any) -> JobTable:
    """The table of a job that changes in place, measured at 1, 2 and 4 slots of a node of eight."""
    spec = spec_of("j", **(elastic_ or elastic(1, 4)))
    job = job_of("j", JobState.RUNNING, age_s=age_s, spec=spec, live=True, **fields)
    measured = tuple(Measurement("cpu", slots, 100.0 * slots**0.9, 100) for slots in (1, 2, 4))
    held = {"j": [("n", slot) for slot in range(size)]}
    return build_table(job, snapshot_of([node_of("n", slots=8)], [job], held, {"j": measured}))


def test_a_change_in_place_costs_what_the_last_one_did() -> None:
    for pause_s, cost_s in ((None, LIVE_CHANGE_S), (0.04, 0.04), (1e6, RESTART_S)):
        table = live(1, progress=JobProgress(pause_s=pause_s))
        (four,) = [row.utility for row in table.rows if row.slots == 4]
        (speedup,) = [one.speedup for one in table.options if one.slots == 4]
        assert four == pytest.approx(math.log1p(speedup * (1 - cost_s / 120)))


def test_what_was_lost_may_come_back_at_once() -> None:
    assert sizes(live(1, age_s=0.0)) == [1, 2, 3, 4]


def test_growth_waits_after_newcomers_that_did_not_come_up() -> None:
    table = live(2, grow_after=NOW + timedelta(seconds=5), growth_failures=1)
    assert sizes(table) == [1, 2]
    assert {one.note for one in table.options if one.slots > 2} == {
        "new ranks did not come up; tried again from 12:00:05 UTC on"
    }
    assert sizes(live(2, grow_after=NOW, growth_failures=1)) == [1, 2, 3, 4]


def test_a_size_that_only_a_loss_could_make_is_left() -> None:
    assert sizes(live(3, elastic_=elastic(1, 8, sizes="pow2"))) == [1, 2, 4, 8]
    assert sizes(live(1, elastic_=elastic(2, 2))) == [2]
    assert sizes(live(3, elastic_=elastic(2, 4, sizes=[2, 4]), pinned_size=4)) == [2, 4]


def test_a_size_that_a_loss_made_is_kept_while_newcomers_do_not_come_up() -> None:
    table = live(1, elastic_=elastic(2, 2), grow_after=NOW + timedelta(seconds=5))
    assert 1 in sizes(table)
