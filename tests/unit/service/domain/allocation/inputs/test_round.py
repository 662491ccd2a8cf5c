"""The input of a policy: the goodput of every configuration, and whether a job may have it now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from headway.contract.agents import NodeState
from headway.contract.run_facts import ProgressSource, Resumption
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.inputs.notes import MIN_RUNTIME_S, Note
from service.domain.allocation.inputs.round import Round, build_round, requested_slots
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S, change_s
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

RUNNING = JobState.RUNNING


def elastic(low: int = 1, high: int = 8, **rest: Any) -> dict[str, Any]:
    return {"elastic": {"min": low, "max": high, **rest}}


def measured(*points: tuple[int, float], kind: str = "cpu") -> tuple[Measurement, ...]:
    return tuple(Measurement(kind, slots, speed, 500, global_batch=64) for slots, speed in points)


def running(
    size: int = 2, points: tuple[tuple[int, float], ...] = ((2, 100.0),), age_s: float = 600.0, **fields: Any
) -> Snapshot:
    """A job on `size` slots of one node of eight."""
    spec = spec_of("j", **fields.pop("spec", elastic()))
    job = job_of("j", RUNNING, age_s=age_s, spec=spec, **fields)
    held = [("n", slot) for slot in range(size)]
    return snapshot_of([node_of("n", slots=8)], [job], {"j": held}, {"j": measured(*points)})


def noted(round_: Round, row: int = 0) -> dict[int, Note]:
    """The notes of a job by size."""
    slots = round_.columns.configurations.slots.tolist()
    return {size: Note(note) for size, note in zip(slots, round_.notes.codes[row].tolist(), strict=True)}


def offered(round_: Round, row: int = 0) -> list[int]:
    return round_.columns.configurations.slots[round_.given.allowed[row]].tolist()


def test_an_unknown_job_is_offered_its_smallest_size() -> None:
    job = job_of("j", spec=spec_of("j", **elastic(2, 8)))
    round_ = build_round(snapshot_of([node_of("n", slots=8)], [job]))
    assert offered(round_) == [2]
    assert noted(round_)[4] is Note.TOO_FAR
    assert not round_.estimates.learned.measured[0]


def test_a_rigid_job_is_offered_every_size_since_it_can_never_grow() -> None:
    job = job_of("j", spec=spec_of("j", **elastic(1, 3, resize="never")))
    assert offered(build_round(snapshot_of([node_of("n", slots=8)], [job]))) == [1, 2, 3]


def test_a_measured_job_may_double() -> None:
    assert offered(build_round(running(2))) == [1, 2, 3, 4]


def test_measurements_of_its_class_guide_a_new_job() -> None:
    job = job_of("j-2", spec=spec_of("gpt-2", **elastic(1, 8)))
    plain = snapshot_of([node_of("n", slots=8)], [job])
    shown = {"default/gpt": measured((1, 100.0), (2, 104.0), (4, 105.0))}
    hopeful, guided = (
        build_round(one).estimates.table.goodput[0]
        for one in (plain, replace(plain, class_measurements=shown))
    )
    assert hopeful[1] / hopeful[0] > 1.5
    assert guided[1] / guided[0] < 1.2


def test_a_job_may_start_where_others_of_its_class_have_run_and_grow_from_there() -> None:
    job = job_of("j-2", spec=spec_of("gpt-2", **elastic(1, 8)))
    plain = snapshot_of([node_of("n", slots=8)], [job])
    shown = {"default/gpt": measured((3, 300.0)), "default/other": measured((8, 100.0))}
    assert offered(build_round(replace(plain, class_measurements=shown))) == [1, 2, 3, 4, 5, 6]


def test_untried_sizes_are_scored_at_the_90th_percentile() -> None:
    round_ = build_round(running(2))
    slots = round_.columns.configurations.slots
    given, table = round_.given.goodput[0], round_.estimates.table
    assert given[slots == 4] == table.high[0, slots == 4] > table.goodput[0, slots == 4]
    assert given[slots == 1] == table.goodput[0, slots == 1]


def test_a_pinned_job_has_two_choices_and_one_of_them_counts() -> None:
    round_ = build_round(running(2, pinned_size=5))
    assert offered(round_) == [2, 5]
    slots = round_.columns.configurations.slots.tolist()
    assert round_.given.goodput[0, slots.index(5)] > 50 * round_.given.goodput[0, slots.index(2)]
    assert round_.given.change_s[0] == 0.0


def test_a_pinned_job_that_waits_takes_that_size_or_nothing() -> None:
    job = job_of("j", spec=spec_of("j", **elastic()), pinned_size=5)
    assert offered(build_round(snapshot_of([node_of("n", slots=8)], [job]))) == [5]


def test_growing_needs_a_gain() -> None:
    round_ = build_round(running(4, ((4, 100.0), (8, 103.0))))
    assert noted(round_)[8] is Note.NO_GAIN


def test_a_small_difference_is_removed_as_noise() -> None:
    round_ = build_round(running(4, ((2, 103.0), (4, 100.0))))
    two, four = (round_.columns.configurations.slots.tolist().index(size) for size in (2, 4))
    assert round_.estimates.table.goodput[0, two] > round_.estimates.table.goodput[0, four]
    assert round_.given.goodput[0, two] == round_.given.goodput[0, four]


@pytest.mark.parametrize("live", [False, True])
def test_a_job_that_was_just_changed_is_not_changed_by_its_own_choice(live: bool) -> None:
    young = running(2, ((1, 130.0), (2, 100.0), (4, 180.0)), age_s=MIN_RUNTIME_S - 1, live=live)
    round_ = build_round(young)
    assert noted(round_)[4] is Note.TOO_YOUNG
    one, two = (round_.columns.configurations.slots.tolist().index(size) for size in (1, 2))
    assert round_.given.goodput[0, one] == round_.given.goodput[0, two], "it shrinks for others only"


def test_a_lost_size_is_regained_at_once() -> None:
    lost = running(2, ((2, 100.0), (4, 180.0)), age_s=1.0, live=True, samples_at_loss=640)
    assert noted(build_round(lost))[4] is Note.OFFERED


def test_a_job_that_is_restarted_grows_only_once_it_is_measured_at_its_size() -> None:
    for generation in (1, 2):
        notes = noted(build_round(running(2, (), generation=generation)))
        assert (notes[1], notes[4]) == (Note.OFFERED, Note.NOT_MEASURED)
    assert noted(build_round(running(2, (), live=True)))[4] is Note.OFFERED
    elsewhere = noted(build_round(running(2, ((4, 200.0),))))
    assert (elsewhere[1], elsewhere[4]) == (Note.OFFERED, Note.NOT_MEASURED)


def shown(*, resumes: bool) -> Resumption:
    return Resumption(generation=2, first=0, stopped_at=100, began_at=99 if resumes else 0, resumes=resumes)


@pytest.mark.parametrize(
    ("said", "evidence", "note"),
    [
        (None, None, Note.UNKNOWN_RESUME),
        (None, shown(resumes=False), Note.UNKNOWN_RESUME),
        (None, shown(resumes=True), Note.OFFERED),
        (True, None, Note.OFFERED),
        (True, shown(resumes=False), Note.OFFERED),
        (False, shown(resumes=True), Note.UNKNOWN_RESUME),
    ],
)
@pytest.mark.parametrize("resize", ["live", "restart"])
def test_a_script_grows_only_once_it_is_known_to_resume(
    resize: str, said: bool | None, evidence: Resumption | None, note: Note
) -> None:
    script = JobProgress(source=ProgressSource.SCRIPT, samples=200, first_samples=0, resumption=evidence)
    spec = {**elastic(1, 8, resize=resize), "resumes": said}
    notes = noted(build_round(running(2, progress=script, spec=spec)))
    assert (notes[1], notes[2], notes[4]) == (Note.OFFERED, Note.CURRENT, note)
    pinned = noted(build_round(running(2, progress=script, spec=spec, pinned_size=4)))
    assert pinned[4] is Note.OFFERED, "its user decides"


def test_a_job_of_the_library_needs_no_evidence_that_it_resumes() -> None:
    of_library = JobProgress(source=ProgressSource.LIBRARY, samples=200)
    assert noted(build_round(running(2, progress=of_library)))[4] is Note.OFFERED


def test_a_job_that_backs_off_is_offered_nothing_elsewhere() -> None:
    job = job_of(
        "j",
        RUNNING,
        age_s=600,
        spec=spec_of("j", **elastic(2, 2)),
        live=True,
        grow_after=NOW + timedelta(seconds=9),
    )
    points = {"j": (*measured((2, 10.0)), *measured((2, 1000.0), kind="a100"))}
    nodes = [node_of("n"), node_of("g", kind="a100")]
    round_ = build_round(snapshot_of(nodes, [job], {"j": [("n", 0), ("n", 1)]}, points))
    kinds = round_.columns.configurations.kind[round_.given.allowed[0]].tolist()
    assert [round_.columns.configurations.kinds[kind] for kind in kinds] == ["cpu"]


def test_a_job_may_stay_although_the_model_finds_its_size_impossible() -> None:
    """Its steps take fewer samples than it has ranks."""
    job = job_of(
        "j", RUNNING, age_s=600, spec=spec_of("j", **elastic(4, 4)), progress=JobProgress(global_batch=2)
    )
    points = {"j": (Measurement("cpu", 4, 500.0, 200, global_batch=2, local_batch=1),)}
    held = {"j": [("n", slot) for slot in range(4)]}
    assert build_round(snapshot_of([node_of("n", 8)], [job], held, points)).given.goodput.max() > 0
    waiting = job_of("j", spec=spec_of("j", **elastic(4, 4)), progress=JobProgress(global_batch=2))
    assert build_round(snapshot_of([node_of("n", 8)], [waiting], {}, points)).given.goodput.max() > 0


def test_growth_waits_after_ranks_that_did_not_come_up() -> None:
    fields = {"live": True, "growth_failures": 1}
    notes = noted(build_round(running(2, grow_after=NOW + timedelta(seconds=5), **fields)))
    assert (notes[1], notes[2], notes[4]) == (Note.OFFERED, Note.CURRENT, Note.BACK_OFF)
    assert noted(build_round(running(2, grow_after=NOW, **fields)))[4] is Note.OFFERED


def test_a_size_left_by_a_loss_that_the_spec_forbids_is_not_kept() -> None:
    notes = noted(build_round(running(3, ((4, 100.0),), live=True, spec=elastic(4, 8))))
    assert notes[3] is Note.NOT_ALLOWED
    assert notes[4] is Note.OFFERED


def test_slots_on_a_cordoned_node_take_nothing_from_others() -> None:
    jobs = [
        job_of("a", RUNNING, age_s=600, spec=spec_of("a", **elastic(1, 4))),
        job_of("b", spec=spec_of("b", **elastic(1, 4))),
    ]
    nodes = [node_of("old", state=NodeState.CORDONED), node_of("new", slots=4)]
    points = {"a": measured((2, 100.0))}
    round_ = build_round(snapshot_of(nodes, jobs, {"a": [("old", 0), ("old", 1)]}, points))
    demand = dict(
        zip(
            round_.columns.configurations.slots[round_.given.allowed[0]].tolist(),
            round_.columns.demand[round_.given.allowed[0]].sum(axis=1).tolist(),
            strict=True,
        )
    )
    assert demand == {1: 0, 2: 0, 3: 1, 4: 2}
    assert (round_.columns.private[round_.given.allowed[1]] == 0).all()
    assert round_.given.rows[0].capacity == 4


def test_slots_of_jobs_in_transition_are_not_granted() -> None:
    jobs = [job_of("a", JobState.STARTING), job_of("b")]
    round_ = build_round(snapshot_of([node_of("n", slots=4)], jobs, {"a": [("n", 0)]}))
    assert [job.id for job in round_.jobs] == ["b"]
    assert [row.capacity for row in round_.given.rows] == [3]


def test_a_job_that_must_leave_its_node_has_no_current_column() -> None:
    snapshot = running(2)
    draining = replace(snapshot, nodes={"n": node_of("n", 8, state=NodeState.DRAINING), "m": node_of("m", 8)})
    round_ = build_round(draining)
    assert round_.given.current.tolist() == [-1]
    assert offered(round_) == [1, 2, 3, 4]


def test_prices_are_those_of_whole_configurations() -> None:
    job = job_of("j", spec=spec_of("j", **elastic(1, 4, resize="never")))
    nodes = [node_of("c", 4), node_of("g", 4, kind="a100")]
    snapshot = replace(snapshot_of(nodes, [job]), usd_per_slot_h={"a100": 2.5, "cpu": -1.0})
    configurations = build_round(snapshot).columns.configurations
    usd = dict(
        zip(
            zip(configurations.kind.tolist(), configurations.slots.tolist(), strict=True),
            configurations.usd_per_h.tolist(),
            strict=True,
        )
    )
    assert usd[0, 4] == 10.0
    assert usd[1, 4] == 0.0


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"live": False}, RESTART_S),
        ({"live": True}, LIVE_CHANGE_S),
        ({"live": True, "progress": JobProgress(pause_s=0.04)}, 0.04),
        ({"live": True, "progress": JobProgress(pause_s=1e6)}, RESTART_S),
    ],
)
def test_a_change_in_place_costs_what_the_last_one_did(fields: dict[str, Any], seconds: float) -> None:
    assert change_s(job_of("j", RUNNING, **fields)) == seconds


@pytest.mark.parametrize(
    ("fields", "slots"),
    [({"min": 1, "max": 16}, 4), ({"min": 3, "max": 3}, 3), ({"min": 1, "max": 8, "sizes": [1, 8]}, 1)],
)
def test_a_rigid_scheduler_gives_the_middle_of_the_range(fields: dict[str, Any], slots: int) -> None:
    assert requested_slots(job_of("j", spec=spec_of("j", elastic=fields))) == slots


def test_remaining_work_is_known_if_the_script_reports_its_total() -> None:
    known = job_of("k", progress=JobProgress(samples=40, total_samples=100))
    points = {"k": measured((1, 10.0)), "u": measured((1, 10.0))}
    given = build_round(snapshot_of([node_of("n")], [known, job_of("u")], {}, points)).given
    assert given.remaining[0] == 60
    assert np.isnan(given.remaining[1])


@pytest.mark.parametrize("of_class", [False, True])
def test_remaining_work_is_unknown_without_a_known_speed(of_class: bool) -> None:
    """Otherwise its time would be a guess, and a short job that has just begun could look the longest."""
    job = job_of("gpt-2", progress=JobProgress(samples=40, total_samples=100), spec=spec_of("gpt-2"))
    shown = {"default/gpt": measured((1, 10.0))} if of_class else {}
    snapshot = replace(snapshot_of([node_of("n")], [job]), class_measurements=shown)
    assert np.isnan(build_round(snapshot).given.remaining[0]) != of_class


def test_the_digest_is_that_of_the_inputs() -> None:
    snapshot = running(2)
    assert build_round(snapshot).digest == build_round(snapshot).digest
    other = running(2, ((2, 200.0),))
    assert build_round(snapshot).digest != build_round(other).digest


def test_a_cluster_without_jobs_or_nodes_has_a_round() -> None:
    for snapshot in (snapshot_of(), snapshot_of([node_of("n")]), snapshot_of([], [job_of("j")])):
        round_ = build_round(snapshot)
        assert round_.notes.codes.shape == (len(snapshot.jobs), len(round_.columns.configurations.slots))
