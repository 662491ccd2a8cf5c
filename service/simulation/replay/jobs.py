"""State of all jobs of a replay: their progress, their slots and their costs.

A job that keeps its column has its own clock: seconds of training from its start to any point of its work on
that column, piecewise linear over the phases of its application. So progress and end are exact, however long
a round is.
"""

from __future__ import annotations

import math

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.world import ClusterRules, Segments, World
from service.simulation.replay.climbs import Climbs


class Tables:
    """Tables of the applications of a world (A), the shorter ones padded.

    Attributes:
        boundaries: Reference samples at the boundaries of the phases (A, E + 1).
        goodput: Reference samples per second (A, E, C).
        converged: Work at which the loss curve of an application converges, as known at each boundary (A, E + 1); NaN if unknown.
        clock_s: Seconds of training until each boundary (A, E + 1, C), infinite where the application cannot run.
        phases: Number of phases (A,).
    """

    def __init__(self, world: World) -> None:
        applications = world.applications
        columns = len(world.configurations.slots)
        self.phases = np.array([len(one.goodput) for one in applications], dtype=np.int64)
        most = int(self.phases.max(initial=1))
        self.boundaries = np.zeros((len(applications), most + 1))
        self.goodput = np.zeros((len(applications), most, columns))
        self.converged = np.full((len(applications), most + 1), np.nan)
        for index, one in enumerate(applications):
            phases = len(one.goodput)
            self.boundaries[index] = one.boundaries[-1]
            self.boundaries[index, : phases + 1] = one.boundaries
            self.goodput[index] = one.goodput[-1]
            self.goodput[index, :phases] = one.goodput
            if one.converged is not None:
                self.converged[index] = one.converged[-1]
                self.converged[index, : phases + 1] = one.converged
        runs = self.goodput > 0
        work = np.diff(self.boundaries, axis=1)[:, :, None]
        phase_s = np.where(runs, work / np.where(runs, self.goodput, 1.0), np.inf)
        self.clock_s = np.concatenate(
            [np.zeros((len(applications), 1, columns)), np.cumsum(phase_s, axis=1)], axis=1
        )
        self.restart_s = np.array([one.restart_s for one in applications])
        self.end_s = np.array([one.end_s for one in applications])


class ReplayJobs:
    """State of the jobs (J,) of a world. `rows` are indices into them. Times are seconds since the start."""

    def __init__(self, world: World, tables: Tables) -> None:
        arrivals, configurations = world.arrivals, world.configurations
        number = len(arrivals)
        self._tables, self._configurations = tables, configurations
        self.submit_s = np.array([one.submit_s for one in arrivals], dtype=np.float64)
        self.application = np.array([one.application for one in arrivals], dtype=np.int64)
        own = tables.boundaries[self.application, -1]
        self.total = np.array([math.nan if one.work is None else one.work for one in arrivals])
        self.total = np.where(np.isnan(self.total), own, self.total)
        self.stretch = self.total / own
        """Ratio of each job's work to that of its application."""
        self.progress = np.array([one.done for one in arrivals], dtype=np.float64)
        """Reference samples at the time when `column` was given."""
        self.column = np.full(number, NOTHING, dtype=np.int64)
        self.trains_from_s = np.full(number, np.inf)
        """Time at which training continues after the last change."""
        self.clock_s = np.zeros(number)
        """Position of the job on its clock at `trains_from_s`."""
        self.ends_s = np.full(number, np.inf)
        """Time at which the job finishes if it keeps its column."""
        self.held_until_s = self.submit_s.copy()
        """Time at which the job last held slots, or was submitted."""
        self.held_from_s = np.zeros(number)
        self.runs_from_s = np.zeros(number)
        """Time at which the job last began to hold slots after it had none."""
        self.start_s, self.end_s = np.full(number, np.inf), np.full(number, np.inf)
        self.served_s = np.zeros((number, len(configurations.kinds)))
        self.served_slot_s, self.usd, self.lost_s = np.zeros(number), np.zeros(number), np.zeros(number)
        self.changes, self.restarts = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
        self.before_s, self.before_slot_s = np.zeros_like(self.served_s), np.zeros(number)
        self.done_before = np.zeros(number)
        """Reference samples done before the replay that are not part of `total`."""
        self.changes_before = np.zeros(number, dtype=np.int64)
        """Changes of each job before the replay."""
        for row, before in enumerate(one.before for one in arrivals):
            if before is not None:
                self.before_s[row], self.before_slot_s[row] = before.served_s, before.served_slot_s
                self.changes_before[row], self.held_until_s[row] = before.changes, -before.waited_s
                self.done_before[row] = before.done
        self.restart_s = tables.restart_s[self.application]
        self._climbs = Climbs(world, self.application)
        self._segments: list[tuple[IntArray, IntArray, FloatArray, FloatArray]] = []

    def progress_at(self, rows: IntArray, now_s: float) -> FloatArray:
        """Return the reference samples done (n,)."""
        progress = self.progress[rows].copy()
        training = np.flatnonzero(self.trains_from_s[rows] < now_s)
        if len(training):
            rows = rows[training]
            trained_s = now_s - self.trains_from_s[rows]
            progress[training] = self._work_at(
                rows, self.clock_s[rows] + self._climbs.clock_after(rows, trained_s)
            )
        return progress

    def phase_at(self, rows: IntArray, progress: FloatArray) -> IntArray:
        """Return the phase of each job (n,)."""
        done = progress / self.stretch[rows]
        application = self.application[rows]
        passed = (self._tables.boundaries[application] <= done[:, None]).sum(axis=1) - 1
        return np.asarray(np.clip(passed, 0, self._tables.phases[application] - 1))

    def converged_at(self, rows: IntArray, phase: IntArray) -> FloatArray:
        """Return the work (n,) at which the loss curves of the jobs, so far reported, converge; NaN without one."""
        return np.asarray(self.stretch[rows] * self._tables.converged[self.application[rows], phase])

    def work(self, rows: IntArray) -> FloatArray:
        """Return the reference samples of the whole jobs (n,), with those done before the replay."""
        return np.asarray(self.done_before[rows] + self.total[rows])

    def beyond(self, rows: IntArray) -> FloatArray:
        """Return the work of the whole jobs (n,) over that at which their loss curves converged; NaN without one."""
        return self.work(rows) / self.converged_at(rows, self._tables.phases[self.application[rows]])

    def leased(self, rows: IntArray, phase: IntArray, now_s: float, rules: ContentionRules) -> BoolArray:
        """Return whether each job (n,), in these phases (n,), has yet to run for a lease or an epoch on its column."""
        application, column = self.application[rows], self.column[rows]
        leased = now_s - self.held_from_s[rows] < rules.lease_s
        if rules.whole_epochs:
            work = self.stretch[rows] * np.diff(self._tables.boundaries, axis=1)[application, phase]
            goodput = self._tables.goodput[application, phase, np.maximum(column, 0)]
            leased |= now_s - self.trains_from_s[rows] < work / np.maximum(goodput, 1e-9)
        return np.asarray((column != NOTHING) & leased)

    def reported_left_s(
        self, rows: IntArray, phase: IntArray, progress: FloatArray, now_s: float
    ) -> FloatArray:
        """Return the seconds (n,) until jobs in these phases (n,) end at their present speeds; infinite before they train."""
        column = self.column[rows]
        speed = self._tables.goodput[self.application[rows], phase, np.maximum(column, 0)]
        trains = (column != NOTHING) & (self.trains_from_s[rows] < now_s) & (speed > 0)
        return np.where(trains, (self.total[rows] - progress) / np.where(trains, speed, 1.0), np.inf)

    def advance(self, rows: IntArray, now_s: float) -> BoolArray:
        """Advance `rows` (n,) to `now_s`, and return which of them have ended."""
        holding = rows[self.column[rows] != NOTHING]
        if not len(holding):
            return np.zeros(len(rows), dtype=np.bool_)
        column, since_s = self.column[holding], self.held_until_s[holding]
        until_s = np.maximum(np.minimum(now_s, self.ends_s[holding]), since_s)
        held_s = until_s - since_s
        trains_s = self.trains_from_s[holding]
        self.served_s[holding, self._configurations.kind[column]] += held_s
        self.served_slot_s[holding] += held_s * self._configurations.slots[column]
        self.usd[holding] += held_s / 3600.0 * self._configurations.usd_per_h[column]
        self.lost_s[holding] += np.minimum(until_s, trains_s) - np.minimum(since_s, trains_s)
        self.held_until_s[holding] = until_s
        self._climbs.note(holding, np.maximum(until_s - trains_s, 0.0))
        done = holding[self.ends_s[holding] <= now_s]
        if len(done):
            self.end_s[done], self.progress[done] = self.ends_s[done], self.total[done]
            self._let_go(done)
        return np.asarray(np.isfinite(self.end_s[rows]))

    def give(self, rows: IntArray, columns: IntArray, now_s: float, rules: ClusterRules) -> None:
        """Give `rows` (n,), already advanced to now, other columns (n,) or none."""
        starts = self.column[rows] == NOTHING
        self.runs_from_s[rows[starts]] = now_s
        live = np.full(len(rows), rules.live_pause_s is not None) & ~starts
        self.progress[rows] = self.progress_at(rows, now_s)
        # A change in place does not shorten a start in progress.
        ready_s = np.where(live, np.maximum(self.trains_from_s[rows], now_s), now_s)
        self._let_go(rows[self.column[rows] != NOTHING])
        has = columns != NOTHING
        rows, columns, live, ready_s = rows[has], columns[has], live[has], ready_s[has]
        self._climbs.begin(rows, self.phase_at(rows, self.progress[rows]), columns, starts[has])
        again = np.isfinite(self.start_s[rows])
        self.changes[rows] += again
        self.restarts[rows] += again & ~live
        self.start_s[rows] = np.minimum(self.start_s[rows], now_s)
        pause_s = np.where(live, rules.live_pause_s or 0.0, self.restart_s[rows])
        self._hold(rows, columns, now_s, ready_s + pause_s)

    def stop(self, rows: IntArray, now_s: float) -> None:
        """Stop the training of `rows` (n,), already advanced to now. They keep their slots until these are taken."""
        self.progress[rows] = self.progress_at(rows, now_s)
        self.trains_from_s[rows] = self.ends_s[rows] = np.inf

    def end_early(self, rows: IntArray, now_s: float) -> None:
        """End `rows` (n,), already advanced to now, before their work is done."""
        self.progress[rows] = self.progress_at(rows, now_s)
        self.end_s[rows] = now_s
        self._let_go(rows[self.column[rows] != NOTHING])

    def holds_already(self, rows: IntArray, columns: IntArray) -> None:
        """Set up `rows` (n,) as training on these columns (n,) when the replay begins."""
        self.start_s[rows] = self.runs_from_s[rows] = np.minimum(self.submit_s[rows], 0.0)
        self._hold(rows, columns, 0.0, np.zeros(len(rows)))

    def loses_node(self, rows: IntArray, now_s: float, checkpoint_s: FloatArray) -> None:
        """Remove the slots of `rows` (n,), and their work since the last checkpoint.

        Checkpoints are `checkpoint_s` (n,) seconds of training apart; 0: a checkpoint was made just now.
        """
        trained_s = np.maximum(now_s - self.trains_from_s[rows], 0.0)
        repeated_s = np.where(checkpoint_s > 0, np.mod(trained_s, np.maximum(checkpoint_s, 1e-9)), 0.0)
        clock_s = self.clock_s[rows] + self._climbs.clock_after(rows, trained_s - repeated_s)
        self.progress[rows] = np.where(trained_s > 0, self._work_at(rows, clock_s), self.progress[rows])
        self.lost_s[rows] += repeated_s
        self._let_go(rows)

    def segments(self, end_s: float) -> Segments:
        """Return all periods in which jobs held slots, including open ones."""
        self._close(np.flatnonzero(self.column != NOTHING), end_s)
        job, column, from_s, to_s = (
            np.concatenate([part[index] for part in self._segments]) if self._segments else np.zeros(0)
            for index in range(4)
        )
        order = np.argsort(to_s, kind="stable")
        return Segments(
            job=job[order].astype(np.int64),
            column=column[order].astype(np.int64),
            from_s=from_s[order],
            to_s=to_s[order],
        )

    def _hold(self, rows: IntArray, columns: IntArray, now_s: float, trains_from_s: FloatArray) -> None:
        application, stretch = self.application[rows], self.stretch[rows]
        bounds, clock_s = self._tables.boundaries[application], self._tables.clock_s[application, :, columns]
        self.clock_s[rows] = stretch * _interpolated(self.progress[rows] / stretch, bounds, clock_s)
        self.column[rows], self.trains_from_s[rows] = columns, trains_from_s
        left_s = np.maximum(stretch * clock_s[:, -1] - self.clock_s[rows], 0.0)
        trains_s = self._climbs.trained_after(rows, left_s)
        self.ends_s[rows] = trains_from_s + trains_s + self._tables.end_s[application]
        self.held_until_s[rows] = self.held_from_s[rows] = now_s

    def _let_go(self, rows: IntArray) -> None:
        self._close(rows, self.held_until_s[rows])
        self.column[rows], self.ends_s[rows], self.trains_from_s[rows] = NOTHING, np.inf, np.inf

    def _close(self, rows: IntArray, to_s: FloatArray | float) -> None:
        if len(rows):
            to = np.broadcast_to(np.asarray(to_s, dtype=np.float64), rows.shape).copy()
            self._segments.append((rows, self.column[rows].copy(), self.held_from_s[rows].copy(), to))

    def _work_at(self, rows: IntArray, clock_s: FloatArray) -> FloatArray:
        """Return the reference samples done (n,) at positions on the clocks of the present columns."""
        application, stretch = self.application[rows], self.stretch[rows]
        bounds = self._tables.boundaries[application]
        clocks = self._tables.clock_s[application, :, self.column[rows]]
        done = stretch * _interpolated(clock_s / stretch, clocks, bounds)
        return np.asarray(np.minimum(done, self.total[rows]))


def _interpolated(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the result of `np.interp` for each row of x and y (n, P), as an array (n,)."""
    rows = np.arange(len(at))
    before = np.clip((x <= at[:, None]).sum(axis=1) - 1, 0, x.shape[1] - 2)
    low, width = x[rows, before], x[rows, before + 1] - x[rows, before]
    share = np.clip((at - low) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    return np.asarray(y[rows, before] + share * (y[rows, before + 1] - y[rows, before]))
