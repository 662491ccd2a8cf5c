"""Transitions with latencies, as in the live system: jobs that change from one column to another, and until when.

Rounds leave such jobs alone, and reserve the slots that they hold or will hold. Without latencies, every
change is immediate.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from service.domain.allocation.inputs.notes import MIN_RUNTIME_S
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from service.domain.contention.rate import WINDOW_S, rests_after
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.clusters import parts_by_kind
from service.simulation.model.world import World
from service.simulation.replay.jobs import ReplayJobs


class Transitions:
    """Transitions of the jobs (J,) of a world. `rows` are indices into them. Times are seconds."""

    def __init__(self, world: World, jobs: ReplayJobs) -> None:
        number = len(world.arrivals)
        self._rules, self._jobs = world.rules, jobs
        parts = parts_by_kind(world.configurations)
        self._parts = np.vstack([parts, np.zeros_like(parts, shape=(1, parts.shape[1]))])
        """Slots by kind (C + 1, K) of each column; of none at the index NOTHING."""
        self._next_column = np.full(number, NOTHING, dtype=np.int64)
        """Column that a job changes to."""
        self._change_at_s = np.full(number, np.inf)
        """Time at which a job changes to the column `_next_column`; infinite without a change."""
        self._runs_s = np.full(number, -np.inf)
        """Time at which a job last began to run with its present slots."""
        self._recent = np.zeros(number, dtype=np.int64)
        """Number of changes of running jobs in the last window."""
        self._changed: deque[tuple[float, IntArray]] = deque()
        """Times of these changes with the changed jobs, oldest first."""
        self._stops = np.zeros(number, dtype=np.int64)
        """Number of stops for others in the last window."""
        self._stopped: deque[tuple[float, IntArray]] = deque()
        """Times of these stops with the stopped jobs, oldest first."""
        self._stopped_s = np.full(number, -np.inf)
        """Time of the last stop of each job for others."""
        self._paused = np.zeros(number, dtype=np.bool_)
        """Mask of jobs that ever changed in place, so that their pause is known."""

    def give(self, rows: IntArray, columns: IntArray, now_s: float) -> None:
        """Start the change of `rows` (n,), advanced to now, to other columns (n,) or none."""
        self._note_changes(rows, columns, now_s)
        latencies = self._rules.latencies
        if latencies is None:
            self._jobs.give(rows, columns, now_s, self._rules)
            return
        held = self._jobs.column[rows]
        starts = np.asarray(held == NOTHING)
        self._jobs.give(rows[starts], columns[starts], now_s, self._rules)
        self._runs_s[rows[starts]] = now_s + latencies.run_s
        later, coming = rows[~starts], columns[~starts]
        newcomers = self.needs(later, coming)[0] != NOTHING
        takes_s = np.where(newcomers, latencies.grow_s, latencies.shrink_s)
        self._next_column[later] = coming
        self._change_at_s[later] = now_s + np.where(coming == NOTHING, latencies.stop_s, takes_s)
        self._jobs.stop(later[coming == NOTHING], now_s)

    def recent_changes(self, rows: IntArray, now_s: float) -> IntArray:
        """Return the number of changes (n,) of each job by rounds while it ran, in the last `rate.WINDOW_S` seconds."""
        while self._changed and self._changed[0][0] <= now_s - WINDOW_S:
            self._recent[self._changed.popleft()[1]] -= 1
        return self._recent[rows]

    def rests_s(self, rows: IntArray, now_s: float) -> FloatArray:
        """Return the seconds (n,) for which jobs that rounds stopped for others leave free slots to jobs that may come."""
        while self._stopped and self._stopped[0][0] <= now_s - WINDOW_S:
            self._stops[self._stopped.popleft()[1]] -= 1
        return rests_after(self._stops[rows], now_s - self._stopped_s[rows])

    def leaving(self, rows: IntArray) -> FloatArray:
        """Return the slots (K,) of each kind that `rows` (n,) are about to leave."""
        changing = rows[np.isfinite(self._change_at_s[rows])]
        held, kept = self._parts[self._jobs.column[changing]], self._parts[self._next_column[changing]]
        return np.asarray(np.maximum(held - kept, 0).sum(axis=0), dtype=np.float64)

    def _note_changes(self, rows: IntArray, columns: IntArray, now_s: float) -> None:
        changed = rows[(self._jobs.column[rows] != NOTHING) & (columns != self._jobs.column[rows])]
        self._recent[changed] += 1
        if len(changed):
            self._changed.append((now_s, changed))
        stopped = rows[(self._jobs.column[rows] != NOTHING) & (columns == NOTHING)]
        if len(stopped):
            self._stops[stopped] += 1
            self._stopped_s[stopped] = now_s
            self._stopped.append((now_s, stopped))

    def advance(self, rows: IntArray, now_s: float) -> None:
        """Complete the due changes of `rows` (n,), which were advanced to now."""
        self._change_at_s[rows[np.isfinite(self._jobs.end_s[rows])]] = np.inf
        changed = rows[self._change_at_s[rows] <= now_s]
        coming = self._next_column[changed]
        if len(changed):
            self._jobs.give(changed, coming, now_s, self._rules)
            self._change_at_s[changed], self._runs_s[changed] = np.inf, now_s
            self._paused[changed[coming != NOTHING]] = True

    def next_s(self, rows: IntArray, now_s: float) -> float:
        """Return the time of the next event of `rows` (n,) that requires a round, infinite for none."""
        if self._rules.latencies is None:
            return np.inf
        times = np.concatenate([self._change_at_s[rows], self._runs_s[rows], self._jobs.trains_from_s[rows]])
        return float(times[times > now_s].min(initial=np.inf))

    def in_transition(self, rows: IntArray, now_s: float) -> BoolArray:
        """Return whether each job (n,) is starting, changing or stopping."""
        return np.asarray(np.isfinite(self._change_at_s[rows]) | (self._runs_s[rows] > now_s))

    def columns(self, rows: IntArray) -> IntArray:
        """Return the columns to reserve for `rows` (n,): those held, and those coming in addition."""
        held = self._jobs.column[rows]
        added, kept = self.needs(
            rows, np.where(np.isfinite(self._change_at_s[rows]), self._next_column[rows], NOTHING)
        )
        keeps = np.where(kept == NOTHING, held, NOTHING)
        columns = np.concatenate([keeps, added])
        return np.asarray(columns[columns != NOTHING])

    def needs(self, rows: IntArray, columns: IntArray) -> tuple[IntArray, IntArray]:
        """Return the columns that `rows` (n,) need in addition to have these columns (n,).

        The first result is the column to reserve. The second is the job's own column that becomes part of it,
        if any. Both are NOTHING for jobs that give up slots.
        """
        held = self._jobs.column[rows]
        has, wants = (self._parts[one] for one in (held, columns))
        less = (wants <= has).all(axis=1)
        grows = ~less & (held != NOTHING) & (has <= wants).all(axis=1)
        return np.where(less, NOTHING, columns), np.where(grows, held, NOTHING)

    def just_changed(self, rows: IntArray, now_s: float) -> BoolArray:
        """Return whether each job (n,) runs and was only just started or changed."""
        live = self._rules.latencies is not None
        holds = self._jobs.column[rows] != NOTHING
        return np.asarray(live & holds & (now_s - self._runs_s[rows] < MIN_RUNTIME_S))

    def has_announced_work(self, rows: IntArray, now_s: float) -> BoolArray:
        """Return whether the script of each job (n,) has trained, and so has announced its work."""
        jobs = self._jobs
        return np.asarray((jobs.progress[rows] > 0) | (jobs.trains_from_s[rows] <= now_s))

    def change_s(self, rows: IntArray) -> FloatArray:
        """Return the expected cost of a change of each job (n,), in seconds of training."""
        pause_s = self._rules.live_pause_s
        if pause_s is None:
            return self._jobs.restart_s[rows]
        if self._rules.latencies is None:
            return np.full(len(rows), pause_s)
        known = np.where(self._paused[rows], min(pause_s, RESTART_S), LIVE_CHANGE_S)
        return np.where(self._jobs.column[rows] == NOTHING, RESTART_S, known)
