"""Work, its share, the time left and the epochs of a job, with and without an adaptive batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress

AS_READ = JobProgress(samples=250, total_samples=1000, samples_per_s=50.0)
BY_PROGRESS = JobProgress(
    samples=910,
    total_samples=1000,
    progress=749.9,
    total_progress=1000.0,
    dataset_samples=100,
    samples_per_s=50.0,
    efficiency=0.5,
)


@pytest.mark.parametrize(
    ("progress", "done", "total", "share", "left_s"),
    [
        (JobProgress(), 0, None, None, None),
        (JobProgress(samples=9), 9, None, None, None),
        (AS_READ, 250, 1000, 0.25, 15.0),
        (AS_READ.model_copy(update={"samples": 1001}), 1001, 1000, 1.0, 0.0),
        (AS_READ.model_copy(update={"samples_per_s": None}), 250, 1000, 0.25, None),
        (AS_READ.model_copy(update={"samples_per_s": 0.0}), 250, 1000, 0.25, None),
        (AS_READ.model_copy(update={"progress": 200.0, "efficiency": 0.5}), 250, 1000, 0.25, 15.0),
        (BY_PROGRESS, 749.9, 1000.0, 0.7499, 250.1 / 25),
        (BY_PROGRESS.model_copy(update={"efficiency": None}), 749.9, 1000.0, 0.7499, 250.1 / 50),
        (BY_PROGRESS.model_copy(update={"efficiency": 0.0}), 749.9, 1000.0, 0.7499, None),
        (BY_PROGRESS.model_copy(update={"progress": None}), 910, 1000.0, 0.91, 90 / 25),
        (BY_PROGRESS.model_copy(update={"progress": 1003.0}), 1003.0, 1000.0, 1.0, 0.0),
    ],
)
def test_work_is_counted_in_the_unit_of_its_end(
    progress: JobProgress, done: float, total: float | None, share: float | None, left_s: float | None
) -> None:
    assert (progress.work_done, progress.work_total) == (done, total)
    assert progress.work_share == (None if share is None else pytest.approx(share))
    assert progress.time_left_s == (None if left_s is None else pytest.approx(left_s))


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (AS_READ, ""),
        (JobProgress(samples=740, total_samples=1000, unit="steps"), "step 740 of 1,000"),
        (JobProgress(samples=740, unit="steps"), ""),
        (BY_PROGRESS, "epoch 7.4 of 10 (progress), 9.1 read"),
        (BY_PROGRESS.model_copy(update={"progress": 910.0}), ""),
        (BY_PROGRESS.model_copy(update={"dataset_samples": None}), ""),
        (BY_PROGRESS.model_copy(update={"total_progress": None}), "epoch 7.4 of 10 (progress), 9.1 read"),
        (
            BY_PROGRESS.model_copy(update={"total_progress": None, "total_samples": None}),
            "epoch 7.4 (progress), 9.1 read",
        ),
        (AS_READ.model_copy(update={"train_step": 740, "train_steps": 1000}), "step 740 of 1,000"),
        (BY_PROGRESS.model_copy(update={"train_step": 1003, "train_steps": 1000}), "step 1,000 of 1,000"),
        (BY_PROGRESS.model_copy(update={"progress": 999.9}), "epoch 9.9 of 10 (progress), 9.1 read"),
    ],
)
def test_users_see_both_counts(progress: JobProgress, expected: str) -> None:
    assert progress.position_text == expected


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.floats(0.1, 1e6))
def test_a_constant_batch_counts_samples(samples: int, total: int, speed: float) -> None:
    progress = JobProgress(samples=samples, total_samples=total, samples_per_s=speed)
    assert progress.work_done == samples
    assert progress.time_left_s == max(0, total - samples) / speed
