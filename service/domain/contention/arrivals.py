"""Expected time until another job needs slots, from the times at which jobs began to wait.

A job that restarts to grow pays the restart twice if it must shrink soon for the minimum of another job. The next job is
foreseen by the intervals between the latest ones. Their distribution has a Dirichlet process as its prior (Ferguson,
1973), as the work of recurring jobs has (`policies.framework.work_left`). The prior counts as one interval, and is free of
scale: after `q` quiet seconds, a quiet of `s` more has the probability `q / (q + s)` (Gott, 1993).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Final

import numpy as np

from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.resuming import is_restarted
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.cluster.contention_rules import RUN_COSTS
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.costs import restart_s
from service.domain.jobs.job import size_of
from service.domain.shared.arrays import BoolArray, FloatArray

LASTS: Final = 2.0 / 3.0
"""Minimum probability that a size reached by a restart is kept for as long as it has to be: odds of two to one."""

LARGER: Final = 2.0
"""Smallest size of an expected job over the largest one of the present jobs: sizes are usually powers of two."""


def may_not_last(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) that a running job would reach by a restart and probably have to leave soon.

    A size lasts if no job is expected within the minimum run time of the restarted job, or if the jobs that are expected
    find room beside it: on free slots, and on those that running jobs give up in place.
    """
    slots, found = (
        scope.columns.configurations.slots,
        np.zeros((len(scope.jobs), len(scope.columns.configurations.slots)), dtype=np.bool_),
    )
    rows = [row for row, job in enumerate(scope.jobs) if scope.current[row] >= 0 and is_restarted(job)]
    arrivals = _arrivals(scope.snapshot) if rows else []
    if not arrivals:
        return found
    parts, room = scope.columns.parts, _room(scope)
    need = LARGER * max(min(job.sizes) for job in scope.jobs)
    quiet_s = max(0.0, (scope.snapshot.now - arrivals[-1]).total_seconds())
    intervals_s = [(later - earlier).total_seconds() for earlier, later in pairwise(arrivals)]
    for row in rows:
        current, cost_s = scope.current[row], restart_s(scope.jobs[row])
        stay_s = cost_s + max(scope.snapshot.contention.min_run_s, RUN_COSTS * cost_s)
        if quiet_probability(intervals_s, quiet_s, stay_s) >= LASTS:
            continue
        # As many jobs as came within the same time before.
        expected = max(1, sum((scope.snapshot.now - one).total_seconds() <= stay_s for one in arrivals))
        more = np.maximum(parts - parts[current], 0)
        tight = ((more > 0) & (room - more < expected * need)).any(axis=1)
        found[row] = tight & (slots > slots[current])
    return found


def quiet_probability(intervals_s: Iterable[float], quiet_s: float, stay_s: float) -> float:
    """Return the probability that no job comes for another `stay_s` seconds, `quiet_s` seconds after the latest one."""
    longer = [one for one in intervals_s if one > quiet_s]
    prior = quiet_s / (quiet_s + stay_s) if stay_s > 0 else 1.0
    return (sum(one > quiet_s + stay_s for one in longer) + prior) / (len(longer) + 1.0)


def _arrivals(snapshot: Snapshot) -> list[datetime]:
    """Return the times at which jobs began to wait for slots, in order: their submits, and present waits after stops."""
    times = {*snapshot.arrivals, *(job.submitted_at for job in snapshot.jobs.values() if not job.spec.after)}
    times |= {
        job.state_since
        for job in snapshot.jobs.values()
        if job.state is JobState.PENDING or (job.state is JobState.RESIZING and not job.target)
    }
    return sorted(times)


def _room(scope: RoundScope) -> FloatArray:
    """Return the slots (K,) by pool that are free, or that running jobs hold beyond their minimums and give up in place."""
    snapshot, pools = scope.snapshot, list(scope.capacities)
    room = np.zeros(len(pools))
    for key in snapshot.free:
        pool = snapshot.pool_of(key)
        if pool is not None and pool.name in scope.capacities:
            room[pools.index(pool.name)] += 1
    for job in scope.jobs:
        keys = snapshot.slots_held_by(job.id)
        pool = snapshot.pool_of(keys[0]) if keys and job.live and job.pinned_size is None else None
        if pool is not None and pool.name in scope.capacities:
            room[pools.index(pool.name)] += max(0, size_of(job.allocation) - min(job.sizes))
    return room
