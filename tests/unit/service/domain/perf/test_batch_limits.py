"""Choices of the batch without a rule for the learning rate, by a measured effect, and for another size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress
from service.domain.perf.batch import ENOUGH_STEPS, TRIAL_STEPS, UNSCALED, Noise, planned_batch
from tests.unit.service.builders import snapshot_of
from tests.unit.service.domain.perf.test_batch import adaptive, chosen, measurement


def test_a_larger_batch_pays_off_without_a_rule_only_by_more_steps_a_second() -> None:
    """128 samples of a step make the progress of 64: the steps a second decide."""
    assert chosen(64, {64: 640.0}, UNSCALED).global_batch == 64
    assert chosen(128, {64: 640.0, 128: 1200.0}, UNSCALED).global_batch == 64
    assert chosen(128, {64: 640.0, 128: 1400.0}, UNSCALED).global_batch == 128


def test_the_reason_of_a_job_without_a_rule_is_its_learning_rate() -> None:
    choice = chosen(128, {64: 640.0, 128: 640.0}, UNSCALED, steps=TRIAL_STEPS + 1)
    assert choice.global_batch == 64
    assert choice.reason.endswith("the learning rate does not follow the batch")


@pytest.mark.parametrize(
    ("effect", "expected"),
    # The noise of 64 samples predicts an efficiency of 2/3 at 128 samples: 1.2, 1.8 and 0.8 times the progress.
    [(1.0, 64), (0.0, 128), (2.0, 64)],
)
def test_the_measured_effect_decides_between_measured_batches(effect: float, expected: int) -> None:
    speeds = {64: 1000.0, 128: 1500.0}
    noise = Noise(sqr=1.0, var=64.0)
    assert chosen(64, speeds, noise, effect=effect, most=128).global_batch == expected


@given(
    st.integers(64, 1024),
    st.floats(-2.0, 4.0),
    st.one_of(st.just(UNSCALED), st.builds(Noise, st.floats(0, 1e6), st.floats(0, 1e6))),
    st.dictionaries(st.integers(1, 4096), st.floats(1e-9, 1e15), max_size=4),
)
def test_whatever_the_effect_a_batch_is_within_the_bounds(
    present: int, effect: float, noise: Noise, speeds: dict[int, float]
) -> None:
    choice = chosen(present, {present: 1000.0, **speeds}, noise, effect=effect)
    assert 64 <= choice.global_batch <= 1024


@pytest.mark.parametrize(
    ("planned", "slots", "own", "expected"),
    [
        (4096, 4, (), 128),
        (100, 4, (), 100),
        (4096, 4, (64, 256), 512),
        (300, 4, (64, 256), 300),
        (32, 4, (64,), 64),
        (64, 100, (64,), 100),
    ],
    ids=["untried", "below the bound", "twice the largest", "as planned", "the reference", "a sample each"],
)
def test_the_planned_batch_stays_near_what_was_tried(
    planned: int, slots: int, own: tuple[int, ...], expected: int
) -> None:
    job = adaptive()
    snapshot = snapshot_of(jobs=[job], measurements={job.id: tuple(map(measurement, own))})
    assert planned_batch(job, snapshot, planned, slots) == expected


def test_a_measurement_that_cannot_be_true_is_no_trial() -> None:
    job = adaptive()
    absurd = replace(measurement(512), samples_per_s=math.inf)
    snapshot = snapshot_of(jobs=[job], measurements={job.id: (absurd,)})
    assert planned_batch(job, snapshot, 4096, 1) == 128


@pytest.mark.parametrize(("steps", "expected"), [(ENOUGH_STEPS - 1, 256), (ENOUGH_STEPS, 64)])
def test_few_steps_do_not_end_the_trial_of_a_larger_batch(steps: int, expected: int) -> None:
    job = adaptive(progress=JobProgress(global_batch=256, max_global_batch=512))
    snapshot = snapshot_of(
        jobs=[job], measurements={job.id: (measurement(64), measurement(256, steps=steps))}
    )
    assert planned_batch(job, snapshot, 64, 1) == expected
