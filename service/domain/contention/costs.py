"""Cost of changes to a job in seconds of training: as measured, otherwise a usual value."""

from __future__ import annotations

from service.domain.cluster.usual_costs import START_S, STOP_S, UNMEASURED, UsualCosts
from service.domain.jobs.job import Job

RESTART_S = STOP_S + START_S
"""Default cost in seconds of a restart without measurements: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""Default cost in seconds of a membership change in place without measurements."""


def restart_s(job: Job, usual: UsualCosts = UNMEASURED) -> float:
    """Return the cost in seconds of stopping and restarting a job, from the order to stop to its next first step.

    A part that was not measured for the job takes as long as `usual`.
    """
    start_s, stop_s = job.progress.start_s, job.progress.stop_s
    return (usual.start_s if start_s is None else start_s) + (usual.stop_s if stop_s is None else stop_s)


def change_s(job: Job, usual: UsualCosts = UNMEASURED) -> float:
    """Return the cost in seconds of a change of the job's slots; parts of a restart that were not measured are `usual`."""
    if not job.live:
        return restart_s(job, usual)
    measured_s = job.progress.pause_s
    return LIVE_CHANGE_S if measured_s is None else min(measured_s, RESTART_S)
