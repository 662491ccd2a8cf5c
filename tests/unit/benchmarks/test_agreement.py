"""Worlds for the simulator, from the events and measurements of a live run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from benchmarks.agreement import agreement
from benchmarks.agreement_live import FinishedJob, Run
from benchmarks.agreement_world import world_of
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import EventView, JobProgress, JobState, JobView, Reason

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BATCH, STEPS = 16, 100


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def seen(
    name: str,
    submitted_s: float,
    trained_s: float,
    finished_s: float,
    step_s: Mapping[int, float] | Mapping[tuple[int, int], float],
    *events: tuple[float, str, dict[str, Any]],
    released_s: tuple[float, ...] = (),
    noise_scale: float | None = None,
) -> FinishedJob:
    batch = {} if noise_scale is None else {"policy": "adaptive", "global": BATCH, "max_global": 2 * BATCH}
    spec = JobSpec.model_validate(
        {"name": name, "run": "python x.py", "elastic": {"min": 1, "max": 2}, "batch": batch}
    )
    samples = BATCH * STEPS
    return FinishedJob(
        job=JobView(
            id=name,
            name=name,
            project="default",
            state=JobState.SUCCEEDED,
            reason=Reason.COMPLETED,
            message="",
            generation=1,
            attempt=1,
            size=1,
            allocation={},
            pinned_size=None,
            progress=JobProgress(samples=samples, total_samples=samples, global_batch=BATCH),
            preemptions=0,
            infrastructure_failures=0,
            user_errors=0,
            submitted_at=at(submitted_s),
            started_at=at(submitted_s),
            finished_at=at(finished_s),
            spec=spec,
            present="",
        ),
        events=tuple(
            EventView(
                sequence=number,
                job_id=name,
                at=at(at_s),
                kind=kind,
                state=None,
                reason=None,
                message="",
                generation=1,
                data=data,
            )
            for number, (at_s, kind, data) in enumerate(events)
        ),
        trained_at=at(trained_s),
        step_s={one if isinstance(one, tuple) else (one, BATCH): taken_s for one, taken_s in step_s.items()},
        noise_scale=noise_scale,
        released_at=tuple(map(at, released_s)),
    )


def run_of(*jobs: FinishedJob) -> Run:
    return Run(jobs=jobs, slots=2, device_kind="cpu", policy="goodput")


STARTS = (
    (0.0, "allocate", {"slots": 1}),
    (0.2, "start", {}),
    (0.6, "first_step", {}),
)
ALONE = seen("alone", 0.0, 10.5, 10.75, {1: 0.1}, *STARTS)


def test_costs_are_those_that_the_run_had() -> None:
    changing = seen(
        "changing",
        5.0,
        40.0,
        40.35,
        {1: 0.2, 2: 0.1},
        *((5.0 + at_s, kind, data) for at_s, kind, data in STARTS),
        (10.0, "vacate", {}),
        (10.4, "requeue", {}),
        (12.0, "allocate", {"slots": 1}),
        (12.4, "start", {}),
        (12.7, "first_step", {}),
        (20.0, "prepare", {}),
        (20.6, "switch", {"from": 1, "to": 2, "pause_s": 0.1}),
        (30.0, "prepare", {}),
        (30.3, "switch", {"from": 2, "to": 1, "pause_s": 0.3}),
        released_s=(10.4, 30.8, 40.35),
    )
    world = world_of(run_of(ALONE, changing))
    latencies = world.rules.latencies
    assert latencies is not None
    assert latencies.run_s == pytest.approx(0.2)
    assert latencies.stop_s == pytest.approx(0.4)
    assert latencies.grow_s == pytest.approx(0.6 - 0.1)
    assert latencies.shrink_s == pytest.approx(0.8)
    assert world.rules.live_pause_s == pytest.approx(0.2)
    # 0.6 - 0.1, 0.6 - 0.2 and 0.7 - 0.2 s from a grant to the begin of the first step.
    assert [one.restart_s for one in world.applications] == pytest.approx([0.5, 0.5])
    assert [one.end_s for one in world.applications] == pytest.approx([0.3, 0.3])
    assert [one.submit_s for one in world.arrivals] == [0.0, 5.0]
    # The one that never had two slots gains from them what the other one does.
    assert world.applications[0].goodput.tolist() == [pytest.approx([BATCH / 0.1, BATCH / 0.05])]


def test_a_job_alone_ends_when_its_steps_are_done() -> None:
    found = agreement(run_of(ALONE))
    assert found["simulated_s"]["alone"] == pytest.approx(0.5 + STEPS * 0.1 + 0.25, abs=1e-3)
    assert found["worst_error"] == pytest.approx(0.0, abs=1e-3)


def test_a_run_that_took_longer_disagrees() -> None:
    late = seen("late", 0.0, 20.5, 20.75, {1: 0.1}, *STARTS)
    found = agreement(run_of(late))
    assert found["worst_error"] == pytest.approx(10.0 / 20.75, abs=1e-3)
    assert found["average_error"] == found["worst_error"]


def test_a_job_that_adapts_its_batch_has_the_measured_stages() -> None:
    """A step takes 20 ms and 5 ms for each sample of a slot; only two points of the line were measured."""
    adaptive = seen(
        "adaptive", 0.0, 20.0, 20.25, {(1, 16): 0.1, (1, 32): 0.18}, *STARTS, noise_scale=math.inf
    )
    (application,) = world_of(run_of(adaptive)).applications
    assert application.steps is not None
    stages = application.steps.stages
    assert stages is not None
    assert stages.batch.tolist() == [16, 32]
    assert stages.step_s.tolist() == [[pytest.approx([0.1, 0.06]), pytest.approx([0.18, 0.1])]]
    assert application.goodput.tolist() == [pytest.approx([32 / 0.18, 32 / 0.1])]
    assert application.steps.global_batch.tolist() == [[32, 32]]


def test_a_replay_climbs_as_the_run_did() -> None:
    """The replay trains 1,600 of 3,200 samples in 100 steps of 16, and the others in 50 steps of 32."""
    batches = {(1, 16): 0.1, (1, 32): 0.18}
    end_s = 0.6 - 0.1 + 100 * 0.1 + 0.25
    one = seen("adaptive", 0.0, end_s - 0.25, end_s, batches, *STARTS, noise_scale=math.inf)
    progress = one.job.progress.model_copy(update={"total_samples": 3200})
    one = replace(one, job=one.job.model_copy(update={"progress": progress}))
    found = agreement(run_of(one))
    assert found["simulated_s"]["adaptive"] == pytest.approx(0.5 + 100 * 0.1 + 50 * 0.18 + 0.25, abs=1e-3)
