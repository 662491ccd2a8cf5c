"""Ended jobs of a snapshot, from which a policy learns the work of recurring jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from service.domain.cluster.snapshot import EndedRun
from service.domain.jobs.job import Job, class_of
from service.domain.policies.framework.policy import FinishedJobs
from service.domain.shared.arrays import FloatArray, IntArray


def finished_jobs(ended: Sequence[EndedRun], jobs: Sequence[Job], worth: FloatArray) -> FinishedJobs:
    """Return the ended jobs (E,) with their classes and work as the policy counts those of the present jobs (J,).

    `worth` (J,) are the reference samples per sample of the present jobs. An ended job has the median of its class. The
    work of a class without a job here is unknown, 0, and only its run times count.
    """
    worth_of_class: dict[tuple[str, str], list[float]] = {}
    for job, one in zip(jobs, worth.tolist(), strict=True):
        worth_of_class.setdefault(_length_class(job), []).append(one)
    present = {name: float(np.median(worth_of_class[name])) for name in sorted(worth_of_class)}
    names = dict.fromkeys([*present, *((one.job_class, one.run) for one in ended)])
    index = {name: number for number, name in enumerate(names)}
    return FinishedJobs(
        job_class=np.array([index[one.job_class, one.run] for one in ended], dtype=np.int64),
        work=np.array(
            [one.samples * present.get((one.job_class, one.run), 0.0) for one in ended], dtype=np.float64
        ),
        run_s=np.array([one.run_s for one in ended], dtype=np.float64),
        beyond=np.array([_beyond(one) for one in ended], dtype=np.float64),
    )


def length_classes(jobs: Sequence[Job]) -> IntArray:
    """Return the index (J,) of each job's class among ended jobs: of its name, and of its command.

    A name alone proves nothing about the length: the next job may run for ten times the epochs.
    """
    own = [_length_class(job) for job in jobs]
    index = {one: number for number, one in enumerate(sorted(set(own)))}
    return np.array([index[one] for one in own], dtype=np.int64)


def _length_class(job: Job) -> tuple[str, str]:
    return class_of(job.spec), job.spec.run


def converged_samples(jobs: Sequence[Job]) -> FloatArray:
    """Return the samples (J,) at which the loss curves of the present jobs converge; NaN without a curve."""
    losses = [job.progress.loss_curve for job in jobs]
    known = [None if one is None else one.converged_work for one in losses]
    return np.array([math.nan if one is None else one for one in known], dtype=np.float64)


def ended_by_class(
    ended: Sequence[EndedRun], finished: FinishedJobs | None
) -> dict[str, tuple[tuple[float, float, float], ...]]:
    """Return the reference samples, run times and work beyond convergence of the ended jobs (E,) by class, in their order."""
    by_class: dict[str, tuple[tuple[float, float, float], ...]] = {}
    if finished is not None:
        works, runs_s = finished.work.tolist(), finished.run_s.tolist()
        for one, work, run_s in zip(ended, works, runs_s, strict=True):
            by_class[one.job_class] = (*by_class.get(one.job_class, ()), (work, run_s, _beyond(one)))
    return by_class


def _beyond(ended: EndedRun) -> float:
    return ended.samples / ended.converged_samples if ended.converged_samples else math.nan
