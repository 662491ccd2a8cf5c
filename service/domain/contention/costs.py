"""Cost of changes to a job in seconds of training: as measured, otherwise a usual value."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job

STOP_S, START_S = 1.0, 2.0
RESTART_S = STOP_S + START_S
"""Default cost in seconds of a restart without measurements: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""Default cost in seconds of a membership change in place without measurements."""


@dataclass(frozen=True, slots=True)
class UsualCosts:
    """Seconds of a stop, and of a start to the first step, that were not measured for the job itself."""

    stop_s: float = STOP_S
    start_s: float = START_S


UNMEASURED: Final = UsualCosts()
"""Usual costs of a cluster in which no stop and no start was measured."""


def usual_costs(snapshot: Snapshot) -> UsualCosts:
    """Return the medians of the stops and starts measured for the present jobs and the latest ended ones.

    They are at least `STOP_S` and `START_S` seconds. Ended jobs count because most jobs are never stopped: on a quiet
    cluster no present job may have a measured stop.
    """
    present = [(job.progress.stop_s, job.progress.start_s) for job in snapshot.jobs.values()]
    known = [*present, *((one.stop_s, one.start_s) for one in snapshot.restarts)]
    stop_s = [one for one, _ in known if one is not None]
    start_s = [one for _, one in known if one is not None]
    return UsualCosts(
        stop_s=max(STOP_S, median(stop_s)) if stop_s else STOP_S,
        start_s=max(START_S, median(start_s)) if start_s else START_S,
    )


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
