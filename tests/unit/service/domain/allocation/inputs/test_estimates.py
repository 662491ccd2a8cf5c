"""Estimates: known jobs, goodput with and without interruptions, and remaining work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.inputs.estimates import Estimates, estimates_of
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from tests.unit.service.builders import clusters, job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.scopes import elastic_job, running_alone, speeds, spot


def estimates(snapshot: Snapshot) -> Estimates:
    return estimates_of(scope_of(snapshot))


def test_a_job_is_known_by_its_own_or_its_classes_measurements() -> None:
    jobs = [
        elastic_job("own-1", name="own-1", age_s=3.0),
        elastic_job("gpt-7", name="gpt-7", age_s=2.0),
        elastic_job("new", age_s=1.0),
    ]
    snapshot = snapshot_of([node_of("n", 4)], jobs, {}, {"own-1": speeds((2, 200.0))})
    snapshot = replace(snapshot, class_measurements={"default/gpt": speeds((2, 200.0))})
    found = estimates(snapshot)
    assert found.known.tolist() == [True, True, False]
    assert found.learned.measured.tolist() == [True, False, False]


def test_a_measured_speed_is_estimated_close_to_its_value() -> None:
    snapshot = running_alone(2, points=speeds((1, 110.0), (2, 200.0), (4, 330.0)), high=4)
    table = estimates(snapshot).table
    slots = scope_of(snapshot).columns.configurations.slots
    measured = {1: 110.0, 2: 200.0, 4: 330.0}
    for size, speed in measured.items():
        assert table.goodput[0, slots == size] == pytest.approx(speed, rel=0.1)


def test_a_policy_that_keeps_batches_has_the_goodput_of_the_job_files_batch() -> None:
    spec = spec_of(batch={"policy": "adaptive", "global": 64, "max_global": 1024}, elastic={"max": 4})
    measured = tuple(
        Measurement(
            "cpu", slots, speed, 500, global_batch=64, step_s=64 / speed, gradient_sqr=1.0, gradient_var=1e4
        )
        for slots, speed in ((1, 100.0), (2, 150.0), (4, 180.0))
    )
    job = job_of("j", spec=spec, progress=JobProgress(global_batch=512, max_global_batch=1024))
    snapshot = snapshot_of([node_of("n", 4)], [job], {}, {"j": measured})
    adapted, kept = estimates(snapshot).table, estimates(replace(snapshot, keeps_batch=True)).table
    assert (adapted.global_batch > 64).all()
    assert (kept.global_batch == 64).all()
    assert kept.efficiency == pytest.approx(1.0)
    slots = scope_of(snapshot).columns.configurations.slots
    assert kept.goodput[0, slots == 4] == pytest.approx(180.0, rel=0.1)
    assert (kept.goodput < adapted.goodput).all()


def test_interruptions_of_spot_machines_reduce_the_prospects_only() -> None:
    job = elastic_job(high=2, market="spot")
    calm = snapshot_of([spot("s", 2)], [job], {}, {"j": speeds((1, 100.0), (2, 190.0))})
    risky = replace(calm, hazard_per_h={"cpu (spot)": 6.0})
    before, after = estimates(calm), estimates(risky)
    assert (before.table.goodput == after.table.goodput).all()
    assert (before.prospects.goodput == before.table.goodput).all()
    assert (after.prospects.goodput < before.prospects.goodput).all()
    ratio = after.prospects.goodput / before.prospects.goodput
    assert after.prospects.low == pytest.approx(before.prospects.low * ratio)
    assert after.prospects.high == pytest.approx(before.prospects.high * ratio)


@pytest.mark.parametrize(("live", "cost_s"), [(True, LIVE_CHANGE_S), (False, RESTART_S)])
def test_a_start_elsewhere_costs_a_change(live: bool, cost_s: float) -> None:
    assert estimates(running_alone(2, live=live)).prospects.start_s.tolist() == [cost_s]


@pytest.mark.parametrize(
    ("progress", "measured", "left"),
    [
        (JobProgress(samples=40, total_samples=100), True, 60.0),
        (JobProgress(samples=100, total_samples=100), True, 1.0),
        (JobProgress(samples=500, total_samples=100), True, 1.0),
        (JobProgress(samples=40, total_samples=100, progress=30.5, total_progress=100.0), True, 69.5),
        (JobProgress(samples=200, total_samples=100, progress=99.75, total_progress=100.0), True, 1.0),
        (JobProgress(samples=40, total_samples=100, progress=30.5), True, 60.0),
        (JobProgress(samples=40), True, np.nan),
        (JobProgress(samples=40, total_samples=100), False, np.nan),
    ],
)
def test_remaining_work_is_known_with_a_total_and_a_speed(
    progress: JobProgress, measured: bool, left: float
) -> None:
    points = speeds((2, 100.0)) if measured else ()
    found = estimates(running_alone(2, points=points, progress=progress)).prospects.remaining
    assert found.tolist() == pytest.approx([left], nan_ok=True)


def test_work_is_converted_only_where_it_is_counted_as_read() -> None:
    """At a noise scale of 10,000 a sample in steps of 512 is worth 10,064 / 10,512 of one in steps of 64."""
    spec = spec_of(batch={"policy": "adaptive", "global": 64, "max_global": 512}, elastic={"max": 1})
    steps = {"global_batch": 512, "step_s": 2.0, "gradient_sqr": 1.0, "gradient_var": 1e4}
    points = (Measurement("cpu", 1, 256.0, 500, **steps),)  # type: ignore[arg-type]
    left = []
    for counted in ({}, {"progress": 30_000.0, "total_progress": 100_000.0}):
        known = {"samples": 30_000, "total_samples": 100_000, "global_batch": 512, "max_global_batch": 512}
        job = job_of("j", JobState.RUNNING, spec=spec, live=True, progress=JobProgress(**known, **counted))
        found = estimates(snapshot_of([node_of("n", 1)], [job], {"j": [("n", 0)]}, {"j": points}))
        assert found.table.global_batch[0, 0] == 512
        left.append(float(found.prospects.remaining[0]))
    assert left == pytest.approx([70_000 * 10_064 / 10_512, 70_000])


@given(clusters())
@settings(max_examples=20)
def test_estimates_are_finite_and_ordered(snapshot: Snapshot) -> None:
    """Whatever scripts measure, no speed is negative or infinite, and the percentiles are in order."""
    found = estimates(snapshot)
    for table in (found.table, found.prospects):
        assert np.isfinite(table.goodput).all()
        assert (table.goodput >= 0).all()
        assert (table.low <= table.goodput * (1 + 1e-9)).all()
        assert (table.goodput <= table.high * (1 + 1e-9)).all()
    assert (found.prospects.goodput <= found.table.goodput * (1 + 1e-9)).all()
    remaining = found.prospects.remaining
    assert (np.isnan(remaining) | (remaining > 0)).all()
    assert np.isnan(remaining[~found.known]).all()
