"""Speeds at another depth of back-propagation, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.perf.depth import compute_share, whole_step_s
from service.domain.perf.learned import LearnedModels, learn
from service.domain.perf.tables import goodput_table
from service.domain.perf.throughput import prior, step_time
from tests.unit.service.builders import job_of, spec_of
from tests.unit.service.domain.perf.configurations import CONFIGURATIONS, observed
from tests.unit.service.domain.perf.test_tables_by_hand import fixed


def test_shares_by_hand() -> None:
    shares = compute_share(np.array([[math.nan], [0.5], [0.25]]), np.array([[1, 2]]))
    np.testing.assert_allclose(shares, [[1.0, 1.0], [1.0, 0.8], [1.0, 2 / 3]])


@pytest.mark.parametrize(
    ("step_s", "sync_s", "min_depth", "slots", "expected"),
    [
        (1.0, None, None, 2, 1.0),
        (1.0, 0.2, 0.5, 1, 1.0),
        (1.0, 0.2, 0.5, 2, 1.2),  # 0.8 s of compute are 1 s, and the wait stays
        (1.0, None, 0.5, 2, 1.25),
        (1.0, 3.0, 0.5, 2, 1.0),  # a wait longer than the step is all of it
    ],
)
def test_a_measured_step_as_if_gradients_were_whole(
    step_s: float, sync_s: float | None, min_depth: float | None, slots: int, expected: float
) -> None:
    assert whole_step_s(step_s, sync_s, min_depth, slots) == pytest.approx(expected)


def test_the_share_multiplies_compute_only() -> None:
    model = replace(
        prior(compute_s=np.array([1.0]), local_batch=np.array([50.0])),
        alpha_r=np.array([0.3]),
        gamma=np.array([1.0]),
    )
    sizes = {"slots": np.array([2]), "nodes": np.array([1]), "local_batch": np.array([50.0])}
    seconds, sync = step_time(model, **sizes, accumulation=np.array([1]), compute_share=np.array([0.8]))
    assert seconds.item() == pytest.approx(2 * 0.8 + 0.3, rel=1e-5)
    assert sync.item() == pytest.approx(0.3, rel=1e-5)


def test_a_table_by_hand() -> None:
    """A pass takes 0.5 s and 5 ms a sample, without synchronisation: on several slots, 0.8 of it and a little more."""
    whole = goodput_table(fixed(), CONFIGURATIONS).goodput[0]
    part = goodput_table(fixed(min_depth=np.array([0.5])), CONFIGURATIONS).goodput[0]
    slots = CONFIGURATIONS.slots
    assert (part / whole)[slots == 1] == pytest.approx(1.0)
    assert (part / whole)[slots == 2] == pytest.approx(1 / 0.8)
    assert (part / whole)[slots > 2] == pytest.approx(1.22, abs=0.02)
    unknown = goodput_table(fixed(min_depth=np.array([math.nan])), CONFIGURATIONS).goodput[0]
    assert unknown.tolist() == whole.tolist()


def test_a_measurement_corrects_a_cell_at_its_own_depth() -> None:
    """A measurement that says what the model says changes nothing."""
    models = fixed(min_depth=np.array([0.5]))
    before = goodput_table(models, CONFIGURATIONS)
    column = int(np.flatnonzero(CONFIGURATIONS.slots == 2)[0])
    seen = observed((0, column, float(before.goodput[0, column]), 100.0, 1000.0))
    after = goodput_table(models, CONFIGURATIONS, seen)
    assert after.goodput[0, column] == pytest.approx(before.goodput[0, column], rel=1e-6)


def measured(slots: int, samples_per_s: float, **fields: float) -> Measurement:
    return Measurement("cpu", slots, samples_per_s, 100, global_batch=64, **fields)  # type: ignore[arg-type]


def job(min_depth: float | None) -> Job:
    elastic = {"max": 4} if min_depth is None else {"max": 4, "partial_backprop": {"min_depth": min_depth}}
    return job_of("gpt-1", spec=spec_of("gpt-1", elastic=elastic))


def speed(found: LearnedModels, slots: int) -> float:
    seconds, _ = step_time(
        found.models.throughput[0:1, 0],
        slots=np.array([slots]),
        nodes=np.array([1]),
        local_batch=np.array([64.0 / slots]),
        compute_share=compute_share(found.models.min_depth, np.array([slots])),  # type: ignore[arg-type]
    )
    return float(64 / seconds.item())


def test_a_class_teaches_jobs_of_another_depth() -> None:
    """The class trained whole: 64 and 120 samples/s. A job at depth 1/2 is to be 1 / 0.8 times as fast on two slots."""
    one = job(0.5)
    shared = (measured(1, 64.0), measured(2, 120.0))
    found = learn([one], ("cpu",), {}, {class_of(one.spec): shared})
    assert [speed(found, slots) for slots in (1, 2)] == pytest.approx([64.0, 150.0], rel=0.05)


def test_a_class_at_half_depth_teaches_whole_jobs() -> None:
    one = job(None)
    shared = (measured(1, 64.0, min_depth=0.5), measured(2, 150.0, min_depth=0.5))
    found = learn([one], ("cpu",), {}, {class_of(one.spec): shared})
    assert [speed(found, slots) for slots in (1, 2)] == pytest.approx([64.0, 120.0], rel=0.05)


def test_own_measurements_are_met_at_the_depth_of_the_job_file() -> None:
    one = job(0.25)
    mine = (measured(1, 64.0), measured(2, 150.0), measured(4, 260.0))
    found = learn([one], ("cpu",), {one.id: mine}, {})
    assert [speed(found, slots) for slots in (1, 2, 4)] == pytest.approx([64.0, 150.0, 260.0], rel=0.05)


@given(min_depth=st.floats(0.05, 0.95), slots=st.integers(1, 16), sync_s=st.floats(0, 1))
def test_a_step_is_never_slower_than_with_whole_gradients(
    min_depth: float, slots: int, sync_s: float
) -> None:
    assert whole_step_s(1.0, sync_s, min_depth, slots) >= 1.0 - 1e-12
    assert compute_share(np.array([min_depth]), np.array([slots])).item() <= 1.0 + 1e-12
