"""Rate limit on unrequested changes: in ten minutes they cost a job at most 1 % of its training time.

A change in place costs the pause of training. A restart costs the time to save, stop, start and load. A job
whose recent changes have used up this allowance is *at rest*. It keeps its size, unless the minimum of
another job needs the slots, or a larger size repays the change within the window.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from headway.contract.run_facts import ImposedChange
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import goodput_now
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

WINDOW_S = 600.0
"""Length in seconds of the window over which changes are counted."""
ALLOWANCE = 0.01
"""Fraction of the window that changes may cost."""
ENDING_S = 60.0
"""Seconds before its expected end from which a job no longer grows."""
REST_S = 60.0
"""Seconds after a stop for others in which the job starts again only once the minimums of all jobs fit."""
REPAYS = 2.0
"""Minimum ratio of the gain of a larger size within the window to the cost of its change."""

IMPOSED = frozenset({Reason.BETTER_ALLOCATION, Reason.PREEMPTED, Reason.WAITING_FOR_CAPACITY})
"""Reasons of changes that a round makes for goodput alone, of this job or of other jobs."""


def with_imposed_change(
    progress: JobProgress, now: datetime, cost_s: float, *, stopped: bool = False
) -> JobProgress:
    """Return the progress of a job that a round changes at `now` at a cost of `cost_s` seconds of training.

    `stopped`: all its slots go to other jobs.
    """
    recent = recent_changes(progress, now)
    return progress.model_copy(
        update={
            "imposed": [*recent, ImposedChange(at=now, cost_s=cost_s, stopped=stopped)],
            "imposed_count": progress.imposed_count + 1,
            "imposed_s": progress.imposed_s + cost_s,
        }
    )


def recent_changes(progress: JobProgress, now: datetime) -> list[ImposedChange]:
    """Return the unrequested changes of the last `WINDOW_S` seconds, oldest first."""
    window = timedelta(seconds=WINDOW_S)
    return [one for one in progress.imposed if now - one.at < window]


def rests_s(progress: JobProgress, now: datetime) -> float:
    """Return the seconds for which a job that was stopped for others leaves free slots to jobs that may come.

    Each further stop of the window doubles the rest: where higher priorities come often, a start would not last.
    """
    recent = [one for one in recent_changes(progress, now) if one.stopped]
    since_s = (now - recent[-1].at).total_seconds() if recent else np.inf
    return float(rests_after(np.array([len(recent)]), np.array([since_s]))[0])


def rests_after(stops: IntArray, since_s: FloatArray) -> FloatArray:
    """Return the rests in seconds (J,) that are left after so many stops of the window, the last one `since_s` ago."""
    rest_s = np.minimum(REST_S * 2.0 ** (np.maximum(stops, 1) - 1), WINDOW_S)
    return np.where(stops > 0, np.maximum(0.0, rest_s - np.maximum(since_s, 0.0)), 0.0)


def at_rest(given: RoundInput, recent_s: FloatArray) -> BoolArray:
    """Return the running jobs (J,) that no change for goodput alone may touch now.

    Changes in the window have cost `recent_s` (J,) seconds of training. This function does not limit a
    restart that alone costs more than the allowance: the policy charges its cost (`RoundInput.change_s`), and
    a job that asks for its slots waits until the change pays.
    """
    allowance_s = ALLOWANCE * WINDOW_S
    used_up = (recent_s + given.change_s > allowance_s) & (given.change_s <= allowance_s)
    # A change that the user or the job's own search asks for is not charged.
    return np.asarray((given.current != NOTHING) & used_up & (given.change_s > 0))


def not_repaid(given: RoundInput, resting: BoolArray) -> BoolArray:
    """Return the configurations (J, C) to which a job at rest cannot change and repay the change within the
    window.
    """
    held = np.maximum(given.current, 0)
    now = goodput_now(given)[:, None]
    gained_s = np.where(now > 0, (given.goodput / np.where(now > 0, now, 1.0) - 1.0) * WINDOW_S, np.inf)
    slots = given.configurations.slots
    other = (slots >= slots[held][:, None]) & (np.arange(len(slots)) != held[:, None])
    return np.asarray(resting[:, None] & other & (gained_s < REPAYS * given.change_s[:, None]))


def ending(given: RoundInput) -> BoolArray:
    """Return the larger sizes (J, C) of running jobs that end within `ENDING_S`: their change would not pay
    off.
    """
    held = np.maximum(given.current, 0)
    now = goodput_now(given)
    known = (now > 0) & np.isfinite(given.remaining)
    left_s = np.where(known, given.remaining / np.where(now > 0, now, 1.0), np.inf)
    ends = (given.current != NOTHING) & (given.change_s > 0) & (left_s < ENDING_S)
    slots = given.configurations.slots
    return np.asarray(ends[:, None] & (slots > slots[held][:, None]))


def keeping(given: RoundInput, resting: BoolArray, seats: IntArray) -> BoolArray:
    """Return the jobs (J,) at rest that can keep all their slots beside the seats (J,) of all jobs, by
    submission order.
    """
    stays = resting & given.allowed[np.arange(len(resting)), np.maximum(given.current, 0)]
    order = np.flatnonzero(stays)
    fits = np.ones(len(order), dtype=np.bool_)
    for row in given.rows:
        counts = np.ones(len(resting), dtype=np.bool_) if row.jobs is None else row.jobs
        left = row.capacity - row.taken(seats)
        own = np.where(seats[order] != NOTHING, row.demand[np.maximum(seats[order], 0)], 0.0)
        more = np.where(counts[order], row.demand[given.current[order]] - own, 0.0)
        fits &= np.cumsum(more) <= left + 1e-9
    keeps = np.zeros(len(resting), dtype=np.bool_)
    keeps[order[fits]] = True
    return keeps
