"""Jobs and snapshots after the end of all transitions."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import is_movable, is_waiting
from service.domain.allocation.configurations.settled import settled, settled_job
from service.domain.cluster.snapshot import SlotKey
from service.domain.jobs.job import size_of
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of


def test_a_settled_job_runs_on_its_slots_without_any_transition() -> None:
    job = job_of(
        "j",
        JobState.RESIZING,
        retry_at=NOW,
        pause_requested=True,
        target={"n": (3,)},
        spec=spec_of("j", elastic={"min": 1, "max": 4}),
    )
    keys = [SlotKey("n", 1), SlotKey("m", 0), SlotKey("n", 0)]
    found = settled_job(job, keys)
    assert (found.state, found.allocation) == (JobState.RUNNING, {"m": (0,), "n": (0, 1)})
    assert (found.target, found.retry_at, found.pause_requested, found.pinned_size) == (
        None,
        None,
        False,
        None,
    )
    assert is_movable(found, snapshot_of([], [found], {"j": [(key.node_id, key.slot) for key in keys]}))
    waiting = settled_job(job, [])
    assert (waiting.state, waiting.allocation) == (JobState.PENDING, {})
    assert is_waiting(waiting, snapshot_of([], [waiting]))


def test_a_settled_job_of_fixed_size_has_its_present_size_and_no_other() -> None:
    job = job_of("j", JobState.RUNNING, spec=spec_of("j", elastic={"min": 1, "max": 4, "resize": "never"}))
    held = settled_job(job, [SlotKey("n", 0), SlotKey("n", 1)])
    assert held.sizes == (2,)
    assert is_movable(held, snapshot_of([], [held], {"j": [("n", 0), ("n", 1)]}))
    assert settled_job(job, []).sizes == (1, 2, 3, 4)
    assert job.spec.elastic.resize == "never", "the given job is unchanged"


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        (JobState.STARTING, {}, 2),
        (JobState.RESIZING, {"target": {"n": (2,)}}, 1),
        (JobState.RESIZING, {"target": None}, 0),
        (JobState.RECOVERING, {}, 0),
        (JobState.RESIZING, {"pause_requested": True}, None),
        (JobState.CANCELLING, {}, None),
    ],
    ids=["starts", "moves", "is vacated", "has failed", "pauses", "is cancelled"],
)
def test_a_transition_ends_on_the_next_slots(
    state: JobState, fields: dict[str, Any], expected: int | None
) -> None:
    """None: the job is gone, and its slots are free."""
    job = job_of("j", state, allocation={"n": (0, 1)}, **fields)
    snapshot = snapshot_of([node_of("n", 4)], [job], held={"j": [("n", 0), ("n", 1)]})
    after = settled(snapshot)
    assert len(after.free) == 4 - (expected or 0)
    assert ("j" in after.jobs) == (expected is not None)
    if expected is not None:
        left = after.jobs["j"]
        assert left.state is (JobState.RUNNING if expected else JobState.PENDING)
        assert size_of(left.allocation) == expected == len(after.slots_held_by("j"))


def test_jobs_without_a_transition_stay_as_they_are() -> None:
    running = job_of("a", JobState.RUNNING, allocation={"n": (0,)})
    others = [job_of("b", JobState.PENDING), job_of("c", JobState.PAUSED)]
    snapshot = snapshot_of([node_of("n", 2)], [running, *others], held={"a": [("n", 0)]})
    after = settled(snapshot)
    assert (after.jobs, after.held) == (snapshot.jobs, snapshot.held)
