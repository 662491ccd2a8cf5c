"""Notes: the eligibility of every configuration, rule by rule and in their order of precedence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.agents import NodeState
from headway.contract.run_facts import MemoryUse, ProgressSource
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.scope import RoundScope, scope_of
from service.domain.allocation.inputs.estimates import estimates_of
from service.domain.allocation.inputs.notes import (
    MIN_GAIN,
    MIN_RUNTIME_S,
    Note,
    Notes,
    contested,
    is_young,
    notes_of,
)
from service.domain.allocation.limits.spending import SpendingBar
from service.domain.cluster.snapshot import Limit, Snapshot
from tests.unit.service.builders import NOW, clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, running_alone, speeds, spot
from tests.unit.service.domain.contention.scenes import Scene, running, waiting

LINEAR = speeds((1, 100.0), (2, 200.0), (4, 400.0), (8, 800.0))
SCRIPT = JobProgress(source=ProgressSource.SCRIPT, samples=200, first_samples=0)


def found(snapshot: Snapshot) -> tuple[RoundScope, Notes]:
    scope = scope_of(snapshot)
    return scope, notes_of(scope, estimates_of(scope))


def noted(snapshot: Snapshot, row: int = 0) -> dict[str, Note]:
    """The notes of a job by column, without those that its spec does not allow."""
    scope, notes = found(snapshot)
    codes = notes.codes[row].tolist()
    return {
        scope.columns.text_of(column): Note(code)
        for column, code in enumerate(codes)
        if code != Note.NOT_ALLOWED
    }


def sizes(snapshot: Snapshot, note: Note) -> list[int]:
    """The sizes of the first job with a note."""
    scope, notes = found(snapshot)
    return scope.columns.configurations.slots[notes.codes[0] == note].tolist()


@pytest.mark.parametrize(
    ("age_s", "fields", "young"),
    [
        (0.0, {}, True),
        (MIN_RUNTIME_S - 0.1, {}, True),
        (MIN_RUNTIME_S, {}, False),
        # The change was stored slightly after the snapshot was read, or a clock was set back by an hour.
        (-1.0, {}, True),
        (-3600.0, {}, False),
        # A job that has lost ranks regains them at once, in place only.
        (1.0, {"live": True, "samples_at_loss": 10}, False),
        (1.0, {"live": False, "samples_at_loss": 10}, True),
        (1.0, {"live": True, "samples_at_loss": None}, True),
    ],
)
def test_a_job_is_young_for_half_a_minute_after_a_change(
    age_s: float, fields: dict[str, Any], young: bool
) -> None:
    job = elastic_job(state=RUNNING, age_s=age_s, **fields)
    assert is_young(job, snapshot_of([], [job])) == young


def test_a_measured_running_job_may_take_every_size_that_pays() -> None:
    assert noted(running_alone(2, points=LINEAR)) == {
        "1 cpu slot": Note.OFFERED,
        "2 cpu slots": Note.CURRENT,
        "3 cpu slots": Note.OFFERED,
        "4 cpu slots": Note.OFFERED,
        "5 cpu slots": Note.OFFERED,
        "6 cpu slots": Note.OFFERED,
        "7 cpu slots": Note.OFFERED,
        "8 cpu slots": Note.OFFERED,
    }


def test_sizes_beyond_twice_the_largest_measured_one_are_too_far() -> None:
    assert sizes(running_alone(2, points=speeds((2, 200.0))), Note.TOO_FAR) == [5, 6, 7, 8]


def test_a_waiting_job_gains_nothing_from_rules_for_running_ones() -> None:
    job = elastic_job(high=8, age_s=1.0)
    snapshot = snapshot_of([node_of("n", 8)], [job], {}, {"j": LINEAR})
    assert set(noted(snapshot).values()) == {Note.OFFERED}


@pytest.mark.parametrize(("ratio", "note"), [(1.03, Note.NO_GAIN), (1.3, Note.OFFERED)])
def test_growth_needs_a_minimum_gain(ratio: float, note: Note) -> None:
    points = speeds((2, 200.0), (4, 200.0 * ratio))
    assert noted(running_alone(2, points=points, elastic={"sizes": [2, 4]}))["4 cpu slots"] is note


def test_a_smaller_size_is_offered_whatever_it_loses() -> None:
    assert noted(running_alone(4, points=LINEAR))["1 cpu slot"] is Note.OFFERED


@pytest.mark.parametrize(
    ("fields", "larger", "smaller"),
    [
        ({"age_s": 5.0, "live": True}, Note.TOO_YOUNG, Note.OFFERED),
        ({"age_s": 5.0, "live": False}, Note.TOO_YOUNG, Note.OFFERED),
        ({"progress": SCRIPT}, Note.UNKNOWN_RESUME, Note.OFFERED),
        ({"progress": SCRIPT, "live": True}, Note.OFFERED, Note.OFFERED),
        ({"progress": SCRIPT, "resumes": True}, Note.OFFERED, Note.OFFERED),
        ({"live": True, "grow_after": NOW + timedelta(seconds=9)}, Note.BACK_OFF, Note.OFFERED),
        # The user's own size overrules a young age and an unknown resumption, but not the backoff.
        ({"age_s": 5.0, "pinned_size": 8}, Note.OFFERED, Note.NOT_ALLOWED),
        ({"progress": SCRIPT, "pinned_size": 8}, Note.OFFERED, Note.NOT_ALLOWED),
        ({"pinned_size": 8, "grow_after": NOW + timedelta(seconds=9)}, Note.BACK_OFF, Note.NOT_ALLOWED),
    ],
)
def test_rules_that_exclude_growth(fields: dict[str, Any], larger: Note, smaller: Note) -> None:
    notes = noted(running_alone(4, points=LINEAR, **fields))
    assert notes.get("8 cpu slots", Note.NOT_ALLOWED) is larger
    assert notes.get("2 cpu slots", Note.NOT_ALLOWED) is smaller
    assert notes["4 cpu slots"] is Note.CURRENT


def test_a_restarted_job_without_a_measurement_at_its_size_does_not_grow() -> None:
    points = speeds((1, 100.0), (8, 800.0))
    assert sizes(running_alone(4, points=points), Note.NOT_MEASURED) == [5, 6, 7, 8]
    assert sizes(running_alone(4, points=points, live=True), Note.NOT_MEASURED) == []


def test_a_job_in_backoff_gets_no_slots_in_another_pool_either() -> None:
    """The same number of slots elsewhere needs new ranks; fewer slots of its own pool need none."""
    nodes = (node_of("n", 2), spot("s", 2))
    snapshot = running_alone(
        2, nodes, LINEAR, high=2, market="mixed", live=True, grow_after=NOW + timedelta(seconds=9)
    )
    notes = noted(snapshot)
    assert notes["1 cpu slot"] is Note.OFFERED
    assert {note for column, note in notes.items() if "spot" in column} == {Note.BACK_OFF}


def test_a_job_that_must_leave_and_backs_off_is_offered_no_larger_size() -> None:
    nodes = (node_of("n", 4, state=NodeState.DRAINING), node_of("m", 8))
    snapshot = running_alone(2, nodes, LINEAR, live=True, grow_after=NOW + timedelta(seconds=9))
    assert sizes(snapshot, Note.BACK_OFF) == [3, 4, 5, 6, 7, 8]
    assert sizes(snapshot, Note.OFFERED) == [1, 2]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"live": True}, Note.NOT_ALLOWED),
        ({"live": False}, Note.CURRENT),
        ({"live": True, "grow_after": NOW + timedelta(seconds=9)}, Note.CURRENT),
        ({"live": True, "pinned_size": 3}, Note.CURRENT),
    ],
)
def test_a_size_that_a_loss_has_left_is_kept_only_while_new_ranks_cannot_come(
    fields: dict[str, Any], note: Note
) -> None:
    scope, notes = found(running_alone(3, points=LINEAR, low=4, **fields))
    assert Note(int(notes.codes[0, scope.current[0]])) is note


def test_a_left_over_job_changes_though_it_is_young_and_gains_nothing() -> None:
    flat = speeds((3, 300.0), (4, 300.0), (8, 300.0))
    notes = noted(running_alone(3, points=flat, low=4, live=True, age_s=1.0))
    assert notes["4 cpu slots"] is Note.OFFERED


PRICED = (node_of("n", 8, usd_per_slot_h=1.0),)


def spender(left_usd: float, size: int = 4, **fields: Any) -> Snapshot:
    """A job of known length: 36,000 samples, which take an hour on one slot at ten samples a second."""
    fields = {"progress": JobProgress(samples=0, total_samples=36_000), **fields}
    points = speeds((1, 10.0), (2, 18.0), (4, 30.0), (8, 40.0))
    snapshot = running_alone(size, PRICED, points, **fields)
    return replace(snapshot, limits={"j": Limit(left_usd)})


def test_configurations_beyond_the_limit_of_dollars_are_over_budget() -> None:
    """One slot costs 1.00 $ until the end, two about 1.11 $, four about 1.33 $, eight about 2.00 $."""
    over = sizes(spender(1.25, size=1), Note.OVER_BUDGET)
    assert 8 in over
    assert 1 not in over
    assert sizes(spender(1000.0, size=1), Note.OVER_BUDGET) == []


def test_a_job_that_cannot_pay_for_its_slots_leaves_them_at_once() -> None:
    scope, notes = found(spender(1.2, age_s=1.0))
    current = int(scope.current[0])
    assert Note(int(notes.codes[0, current])) is Note.OVER_BUDGET
    assert SpendingBar(int(notes.bars[0, current])) is SpendingBar.OVER_BUDGET
    assert sizes(spender(1.2, age_s=1.0), Note.TOO_YOUNG) == []


def test_it_keeps_them_while_no_part_of_them_is_affordable() -> None:
    """The job file allows four slots only: there is nothing to shrink to."""
    snapshot = spender(0.01, low=4, high=4)
    assert noted(snapshot)["4 cpu slots"] is Note.CURRENT


def test_a_deadline_at_hand_excludes_spot_machines() -> None:
    nodes = (spot("s", 2), node_of("f", 2))
    job = elastic_job(
        high=2,
        market="mixed",
        goal={"deadline": NOW + timedelta(seconds=350)},
        progress=JobProgress(samples=0, total_samples=36_000),
    )
    snapshot = snapshot_of(nodes, [job], {}, {"j": speeds((1, 50.0), (2, 100.0))})
    notes = noted(snapshot)
    assert {note for column, note in notes.items() if "spot" in column} == {Note.DEADLINE}
    assert notes["2 cpu slots"] is Note.OFFERED


@pytest.mark.parametrize(
    "fields", [{"pinned_size": 2}, {"elastic": {"resize": "never"}, "state": None}], ids=["pinned", "rigid"]
)
def test_a_job_that_is_not_explored_may_have_all_its_sizes_at_once(fields: dict[str, Any]) -> None:
    fields = {key: value for key, value in fields.items() if value is not None}
    snapshot = snapshot_of([node_of("n", 8)], [elastic_job(high=8, **fields)])
    assert set(noted(snapshot).values()) == {Note.OFFERED}


def test_a_silent_script_may_have_all_its_sizes_at_once() -> None:
    assert Note.TOO_FAR not in noted(running_alone(1, age_s=600.0, live=True)).values()
    assert Note.TOO_FAR in noted(running_alone(1, age_s=5.0, live=True)).values()


def test_policies_may_choose_what_is_offered_or_current() -> None:
    _, notes = found(running_alone(2, points=speeds((2, 200.0))))
    assert (notes.allowed == np.isin(notes.codes, (Note.OFFERED, Note.CURRENT))).all()
    assert notes.allowed.sum() == 4


def test_the_rules_for_competing_jobs_note_offered_configurations_only() -> None:
    """The job reserved against comes first, then missing evidence, then rest."""
    contest = Scene(rivals=[running(2, known=(2,), recent_s=6.0, scaling=0.0)], capacity=(2,)).contest
    offered = np.full((1, 3), int(Note.OFFERED))
    assert contested(offered, contest).tolist() == [[Note.AT_REST, Note.OFFERED, Note.UNPROVEN]]
    current = np.array([[Note.OFFERED, Note.CURRENT, Note.TOO_YOUNG]])
    assert contested(current, contest).tolist() == [[Note.AT_REST, Note.CURRENT, Note.TOO_YOUNG]]
    rivals = [running(2, sizes=(2,), run_s=1.0), waiting(sizes=(4,), waited_s=2000.0)]
    reserved = contested(np.full((2, 3), int(Note.OFFERED)), Scene(rivals=rivals).contest)
    assert reserved[1].tolist() == [Note.RESERVED] * 3
    assert Note.RESERVED not in reserved[0]


@given(clusters())
@settings(max_examples=20)
def test_notes_of_any_cluster(snapshot: Snapshot) -> None:
    scope, notes = found(snapshot)
    assert (
        notes.codes.shape
        == notes.bars.shape
        == notes.hope.shape
        == (len(scope.jobs), len(scope.columns.parts))
    )
    assert set(notes.codes.ravel().tolist()) <= set(Note)
    for row, (job, holding) in enumerate(zip(scope.jobs, scope.holdings.values(), strict=True)):
        column = int(scope.current[row])
        held = notes.codes[row] == Note.CURRENT
        assert held.sum() <= 1
        assert not held.any() or column >= 0
        if not holding.size:
            assert not np.isin(
                notes.codes[row], (Note.NO_GAIN, Note.TOO_YOUNG, Note.BACK_OFF, Note.CURRENT)
            ).any()
        barred = notes.codes[row] == Note.OVER_BUDGET
        assert (notes.bars[row, barred] == SpendingBar.OVER_BUDGET).all(), job.id


@given(clusters())
@settings(max_examples=15)
def test_growth_by_own_choice_always_gains(snapshot: Snapshot) -> None:
    scope, notes = found(snapshot)
    slots = scope.columns.configurations.slots
    for row, (job, holding) in enumerate(zip(scope.jobs, scope.holdings.values(), strict=True)):
        column = int(scope.current[row])
        if column < 0 or notes.codes[row, column] != Note.CURRENT or job.live or job.pinned_size:
            continue
        if notes.bars[row, column] != SpendingBar.NONE:
            continue
        grown = (notes.codes[row] == Note.OFFERED) & (slots > holding.size)
        assert (notes.hope[row, grown] >= MIN_GAIN * notes.hope[row, column]).all()


# Meshes


def test_sizes_that_no_mesh_has_are_not_offered() -> None:
    snapshot = running_alone(2, points=LINEAR, parallel={"tp": 2}, low=2)
    assert set(noted(snapshot)) <= {"2 cpu slots", "4 cpu slots", "6 cpu slots", "8 cpu slots"}
    assert "4 cpu slots" in noted(snapshot)


def test_sizes_at_which_a_rank_lacks_memory_are_excluded() -> None:
    memory = MemoryUse(peak_bytes=90, shard_bytes=60, device_bytes=100, fsdp=4, samples=8)
    progress = JobProgress(mesh="fsdp=4", memory=memory, global_batch=32)
    batch = {"global": 32, "max_local": 8}
    snapshot = running_alone(4, points=LINEAR, parallel={}, batch=batch, progress=progress)
    assert sizes(snapshot, Note.NO_MEMORY) == [1, 2, 3]
    assert not sizes(running_alone(4, points=LINEAR, parallel={}, batch=batch), Note.NO_MEMORY)


def test_a_size_that_is_too_far_is_excluded_for_its_memory_first() -> None:
    memory = MemoryUse(peak_bytes=90, shard_bytes=60, device_bytes=100, fsdp=8, samples=8)
    progress = JobProgress(mesh="fsdp=8", memory=memory, global_batch=32)
    snapshot = running_alone(
        2, points=speeds((2, 400.0)), batch={"global": 32, "max_local": 8}, progress=progress
    )
    assert sizes(snapshot, Note.NO_MEMORY) == [1, 3, 4, 5, 6, 7]
    assert sizes(snapshot, Note.TOO_FAR) == [8]
