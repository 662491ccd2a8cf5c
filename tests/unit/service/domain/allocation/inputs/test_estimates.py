"""Estimates: known jobs, goodput with and without interruptions, and remaining work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.inputs.estimates import Estimates, estimates_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from tests.unit.service.builders import clusters, node_of, snapshot_of
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
