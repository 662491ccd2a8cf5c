"""Cost of changes to a job in seconds of training: as measured, otherwise a usual value."""

from __future__ import annotations

from service.domain.jobs.job import Job

RESTART_S = 3.0
"""Default cost in seconds of a restart without measurements: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""Default cost in seconds of a membership change in place without measurements."""


def restart_s(job: Job) -> float:
    """Return the cost in seconds of stopping and restarting a job."""
    start_s, stop_s = job.progress.start_s, job.progress.stop_s
    if start_s is None and stop_s is None:
        return RESTART_S
    return (start_s or 0.0) + (stop_s or 0.0)


def change_s(job: Job) -> float:
    """Return the cost in seconds of a change of the job's slots."""
    if not job.live:
        return restart_s(job)
    measured_s = job.progress.pause_s
    return LIVE_CHANGE_S if measured_s is None else min(measured_s, RESTART_S)
