"""Seconds of stops and starts that were not measured for a job itself."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from service.domain.cluster.snapshot import Snapshot

STOP_S: Final = 1.0
START_S: Final = 2.0
"""Default seconds of a stop, and of a start to the first step, without measurements."""


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
