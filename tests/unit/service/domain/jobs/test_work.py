"""The unit of a job's work, and its value in reference samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress
from service.domain.jobs.work import counts_progress, worth_of_work
from tests.unit.service.builders import job_of, spec_of

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 512}
EFFICIENCY = np.array([0.5, 0.0, 1.0])


@pytest.mark.parametrize(
    ("batch", "resize", "progress", "counts"),
    [
        ({}, "live", JobProgress(), False),
        ({}, "live", JobProgress(total_samples=9), False),
        (ADAPTIVE, "live", JobProgress(), True),
        (ADAPTIVE, "live", JobProgress(total_samples=9), False),
        (ADAPTIVE, "live", JobProgress(total_samples=9, progress=1.0), False),
        (ADAPTIVE, "live", JobProgress(total_samples=9, progress=1.0, total_progress=9.0), True),
        (ADAPTIVE, "restart", JobProgress(), False),
    ],
)
def test_the_unit_follows_the_end(
    batch: dict[str, Any], resize: str, progress: JobProgress, counts: bool
) -> None:
    job = job_of("j", spec=spec_of(batch=batch, elastic={"resize": resize}), progress=progress)
    assert counts_progress(job) is counts
    expected = [1.0, 1.0, 1.0] if counts else [0.5, 1.0, 1.0]
    assert worth_of_work(job, EFFICIENCY, EFFICIENCY).tolist() == expected


def test_the_measured_effect_of_the_batch_is_no_part_of_the_counted_progress() -> None:
    """With an effect of 2, a sample that counts as 0.5 makes the progress of 0.25."""
    progress = JobProgress(total_samples=9, progress=1.0, total_progress=9.0)
    job = job_of("j", spec=spec_of(batch=ADAPTIVE, elastic={"resize": "live"}), progress=progress)
    found = worth_of_work(job, np.array([0.25, 0.0, 1.0]), np.array([0.5, 0.0, 1.0]))
    assert found.tolist() == [0.5, 1.0, 1.0]
