"""Cost of changes to a job in seconds of training: as measured, otherwise a usual value."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from service.domain.jobs.job import Job

STOP_S, START_S = 1.0, 2.0
RESTART_S = STOP_S + START_S
"""Default cost in seconds of a restart without measurements: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""Default cost in seconds of a membership change in place without measurements."""


def usual_stop_s(jobs: Iterable[Job]) -> float:
    """Return the seconds that a stop takes which was not measured: the median of the jobs' measured ones, at least `STOP_S`."""
    measured_s = [job.progress.stop_s for job in jobs if job.progress.stop_s is not None]
    return max(STOP_S, median(measured_s)) if measured_s else STOP_S


def restart_s(job: Job, stop_s: float = STOP_S) -> float:
    """Return the cost in seconds of stopping and restarting a job, from the order to stop to its next first step.

    A part that was not measured yet counts as usual: a stop takes `stop_s` seconds (`usual_stop_s`).
    """
    start_s, own_s = job.progress.start_s, job.progress.stop_s
    return (START_S if start_s is None else start_s) + (stop_s if own_s is None else own_s)


def change_s(job: Job) -> float:
    """Return the cost in seconds of a change of the job's slots."""
    if not job.live:
        return restart_s(job)
    measured_s = job.progress.pause_s
    return LIVE_CHANGE_S if measured_s is None else min(measured_s, RESTART_S)
