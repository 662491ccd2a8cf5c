"""The unit of a job's work: reference samples where the job ends by progress, otherwise samples as read. Pure."""

from __future__ import annotations

import numpy as np

from service.domain.jobs.job import Job
from service.domain.shared.arrays import FloatArray


def counts_progress(job: Job) -> bool:
    """Return True if the job's work is in reference samples: it ends by progress, or is expected to.

    A job with an adaptive batch ends by progress unless its script reports another end.
    """
    progress = job.progress
    return progress.total_progress is not None or (progress.total_samples is None and job.adapts)


def worth_of_work(job: Job, efficiency: FloatArray, counted: FloatArray) -> FloatArray:
    """Return the reference samples per unit of the job's work, where batches have this statistical efficiency.

    `counted` is the efficiency by which ranks count their progress, with the effect of the batch as of their last order. The
    result is 1 where no batch is possible (efficiency 0).
    """
    possible = (efficiency > 0) & (counted > 0)
    unit = np.where(possible, counted, 1.0) if counts_progress(job) else np.ones(np.shape(efficiency))
    return np.where(possible, efficiency, 1.0) / unit
