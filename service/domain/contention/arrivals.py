"""Expected time until another job needs slots, from the times at which jobs began to wait.

A job that restarts to grow pays the restart twice if it must shrink soon for the minimum of another job. The next job is
foreseen by the intervals between the latest ones. Their distribution has a Dirichlet process as its prior (Ferguson,
1973), as the work of recurring jobs has (`policies.framework.work_left`). The prior counts as one interval, and is free of
scale: after `q` quiet seconds, a quiet of `s` more has the probability `q / (q + s)` (Gott, 1993).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

LASTS: Final = 2.0 / 3.0
"""Minimum probability that a size reached by a restart is kept for as long as it has to be: odds of two to one."""

LARGER: Final = 2.0
"""Smallest size of an expected job over the largest one of the present jobs: sizes are usually powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Jobs (J,) that could change to configurations (C,) of the kinds or pools (K,) of a cluster.

    Attributes:
        current: (J,) configuration that each job holds, `NOTHING` without slots.
        slots: (C,) slots of each configuration.
        parts: (C, K) slots of each configuration by kind or pool.
        restarted: (J,) jobs that restart to change their size.
        stay_s: (J,) seconds for which a new size has to last: the restart, and the minimum run time after it.
        least: (J,) fewest slots of each job.
        room: (K,) slots that are free, or that running jobs hold beyond their minimums and give up in place.
        arrived_s: seconds since each of the latest jobs began to wait, in any order.
    """

    current: IntArray
    slots: IntArray
    parts: FloatArray
    restarted: BoolArray
    stay_s: FloatArray
    least: IntArray
    room: FloatArray
    arrived_s: Sequence[float]


def short_lived(growth: Growth) -> BoolArray:
    """Return the configurations (J, C) that a running job would reach by a restart and probably have to leave soon.

    A size lasts if no job is expected within the minimum run time of the restarted job, or if the jobs that are expected
    find room beside it: on free slots, and on those that running jobs give up in place.
    """
    slots, parts = growth.slots, growth.parts
    found = np.zeros((len(growth.current), len(slots)), dtype=np.bool_)
    rows, arrived_s = (growth.restarted & (growth.current >= 0)).nonzero()[0], sorted(growth.arrived_s)
    if not arrived_s:
        return found
    need = LARGER * growth.least.max(initial=0)
    intervals_s = [earlier - later for later, earlier in pairwise(arrived_s)]
    for row in rows.tolist():
        current, stay_s = growth.current[row], float(growth.stay_s[row])
        if quiet_probability(intervals_s, max(0.0, arrived_s[0]), stay_s) >= LASTS:
            continue
        # As many jobs as came within the same time before.
        expected = max(1, sum(one <= stay_s for one in arrived_s))
        more = np.maximum(parts - parts[current], 0)
        tight = ((more > 0) & (growth.room - more < expected * need)).any(axis=1)
        found[row] = tight & (slots > slots[current])
    return found


def may_not_last(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) of a round that a job would probably have to leave soon (`short_lived`)."""
    restarted = np.array([is_restarted(job) for job in scope.jobs], dtype=np.bool_)
    configurations = scope.columns.configurations
    if not (restarted & (scope.current >= 0)).any():
        return np.zeros((len(scope.jobs), len(configurations.slots)), dtype=np.bool_)
    least_s = scope.snapshot.contention.min_run_s
    cost_s = np.array([restart_s(job, scope.usual) for job in scope.jobs])
    return short_lived(
        Growth(
            current=scope.current,
            slots=configurations.slots,
            parts=scope.columns.parts.astype(np.float64),
            restarted=restarted,
            stay_s=lasting_s(cost_s, least_s),
            least=np.array([min(job.sizes) for job in scope.jobs], dtype=np.int64),
            room=_room(scope),
            arrived_s=[(scope.snapshot.now - one).total_seconds() for one in _arrivals(scope.snapshot)],
        )
    )


def lasting_s(cost_s: FloatArray, least_s: float) -> FloatArray:
    """Return the seconds (J,) for which a size has to last: a restart of `cost_s` (J,), and the minimum run time after it."""
    return np.asarray(cost_s + np.maximum(least_s, RUN_COSTS * cost_s))


def quiet_probability(intervals_s: Iterable[float], quiet_s: float, stay_s: float) -> float:
    """Return the probability that no job comes for another `stay_s` seconds, `quiet_s` seconds after the latest one."""
    longer = [one for one in intervals_s if one > quiet_s]
    prior = quiet_s / (quiet_s + stay_s) if stay_s > 0 else 1.0
    return (sum(one > quiet_s + stay_s for one in longer) + prior) / (len(longer) + 1.0)


def _arrivals(snapshot: Snapshot) -> list[datetime]:
    """Return the times at which jobs began to wait for slots: their submits, and present waits after stops.

    Jobs submitted at the same time are several.
    """
    present = Counter(job.submitted_at for job in snapshot.jobs.values() if not job.spec.after)
    times = Counter(snapshot.arrivals) | present
    waits = {
        job.state_since
        for job in snapshot.jobs.values()
        if job.state is JobState.PENDING or (job.state is JobState.RESIZING and not job.target)
    }
    return [*times.elements(), *(waits - times.keys())]


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
