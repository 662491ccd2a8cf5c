"""Changes that take their time, as in the live system: who is on the way from one column to another, and until when.

Rounds leave such jobs alone, and count for them what they hold or will hold. Where a world has no latencies, whatever is
given is there at once.
"""

from __future__ import annotations

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.notes import MIN_RUNTIME_S
from service.domain.allocation.round import LIVE_CHANGE_S, RESTART_S
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.simulation.jobs import Jobs
from service.simulation.world import World


class Transitions:
    """The jobs (J,) of a world that are on their way; `rows` are indices into them. Times are seconds."""

    def __init__(self, world: World, jobs: Jobs) -> None:
        number = len(world.arrivals)
        self._rules, self._jobs = world.rules, jobs
        self._slots, self._kind = world.configurations.slots, world.configurations.kind
        self._coming = np.full(number, NOTHING, dtype=np.int64)
        """The column that a job changes to,"""
        self._comes_s = np.full(number, np.inf)
        """and when; infinite where it changes to nothing else."""
        self._runs_s = np.full(number, -np.inf)
        """When it last began to run with what it has."""
        self._paused = np.zeros(number, dtype=np.bool_)
        """Whether it ever changed in place, so that its pause is known."""

    def give(self, rows: IntArray, columns: IntArray, now_s: float) -> None:
        """`rows` (n,), advanced to now, are to have other columns (n,), or nothing."""
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
        self._coming[later] = coming
        self._comes_s[later] = now_s + np.where(coming == NOTHING, latencies.stop_s, takes_s)
        self._jobs.stop(later[coming == NOTHING], now_s)

    def advance(self, rows: IntArray, now_s: float) -> None:
        """Lets the changes of `rows` (n,), which were advanced to now, come about."""
        self._comes_s[rows[np.isfinite(self._jobs.end_s[rows])]] = np.inf
        changed = rows[self._comes_s[rows] <= now_s]
        coming = self._coming[changed]
        if len(changed):
            self._jobs.give(changed, coming, now_s, self._rules)
            self._comes_s[changed], self._runs_s[changed] = np.inf, now_s
            self._paused[changed[coming != NOTHING]] = True

    def next_s(self, rows: IntArray, now_s: float) -> float:
        """When the next thing happens to `rows` (n,) that a round is held for; infinite for never."""
        if self._rules.latencies is None:
            return np.inf
        times = np.concatenate([self._comes_s[rows], self._runs_s[rows], self._jobs.trains_from_s[rows]])
        return float(times[times > now_s].min(initial=np.inf))

    def on_the_way(self, rows: IntArray, now_s: float) -> BoolArray:
        """(n,) whether each starts, changes or stops."""
        return np.asarray(np.isfinite(self._comes_s[rows]) | (self._runs_s[rows] > now_s))

    def columns(self, rows: IntArray) -> IntArray:
        """Everything that must be kept for `rows` (n,): what they hold, and what they will besides."""
        held = self._jobs.column[rows]
        added, kept = self.needs(
            rows, np.where(np.isfinite(self._comes_s[rows]), self._coming[rows], NOTHING)
        )
        keeps = np.where(kept == NOTHING, held, NOTHING)
        columns = np.concatenate([keeps, added])
        return np.asarray(columns[columns != NOTHING])

    def needs(self, rows: IntArray, columns: IntArray) -> tuple[IntArray, IntArray]:
        """What `rows` (n,) need more to have these columns (n,): a column that nobody may hold, and the one of their own, if
        any, that becomes a part of it. Nothing for those that give up slots.
        """
        held, size = self._jobs.column[rows], self._size
        alike = (held != NOTHING) & (self._kind[np.maximum(held, 0)] == self._kind[np.maximum(columns, 0)])
        less = (columns == NOTHING) | (alike & (size(columns) <= size(held)))
        return np.where(less, NOTHING, columns), np.where(~less & alike, held, NOTHING)

    def young(self, rows: IntArray, now_s: float) -> BoolArray:
        """(n,) whether each runs, and was only just started or changed."""
        live = self._rules.latencies is not None
        holds = self._jobs.column[rows] != NOTHING
        return np.asarray(live & holds & (now_s - self._runs_s[rows] < MIN_RUNTIME_S))

    def has_spoken(self, rows: IntArray, now_s: float) -> BoolArray:
        """(n,) whether the script of each has trained, and so has said how much there is to do."""
        jobs = self._jobs
        return np.asarray((jobs.progress[rows] > 0) | (jobs.trains_from_s[rows] <= now_s))

    def change_s(self, rows: IntArray) -> FloatArray:
        """(n,) what a round believes that a change of each costs, in seconds of training."""
        pause_s = self._rules.live_pause_s
        if pause_s is None:
            return self._jobs.restart_s[rows]
        if self._rules.latencies is None:
            return np.full(len(rows), pause_s)
        known = np.where(self._paused[rows], min(pause_s, RESTART_S), LIVE_CHANGE_S)
        return np.where(self._jobs.column[rows] == NOTHING, RESTART_S, known)

    def _size(self, columns: IntArray) -> IntArray:
        return np.asarray(np.where(columns == NOTHING, 0, self._slots[np.maximum(columns, 0)]))
