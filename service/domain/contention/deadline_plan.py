"""Plan of the jobs with deadlines: the size and the start of each one that ends in time, and who misses.

The plan places jobs on a timeline of the free capacity. Each one gets the smallest size whose P90 finish meets its
deadline, as early as that fits. Jobs are placed in the order of their deadlines. A job that does not fit replaces
the planned job with the most slot-seconds, if that is larger: the rule of Moore and Hodgson (1968), with which the
fewest jobs miss on a single slot. Shapes use `J` jobs, `C` configurations and `R` rows.

A job that is displaced, or planned for later, keeps its smallest size for the rest of its minimum run time. A promise
counts the runs that had begun at its submit and the promises before it; nothing that comes later precedes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

MOST_PLANNED = 128
"""Maximum number of deadlines in a plan, the earliest ones, which bounds the time of a round."""
_EVENTS = 48
"""Number of moments to which the ends of other jobs are rounded up, which bounds the timeline."""
_LATE_EVENTS = 16
"""Number of moments after the last deadline, from which the nearest feasible deadlines of misses follow."""
_SWAPS = 16
"""Maximum number of replacements that a plan tries."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines of the jobs (J,) of a round.

    Attributes:
        left_s: (J,) seconds until the deadline; infinite without one.
        late_s: (J, C) seconds until the P90 finish in a configuration, with the change to it: infinite where
            the job cannot run, NaN where its work or speed is unknown.
        may: (J, C) configurations that the job may change to for its deadline now.
        promised: (J,) jobs that were accepted with a promise (`goal.admit: reject`).
        visiting: (J,) jobs whose search visits sizes, which keeps the deadline itself.
        priority: (J,) priority in the job file.
        rows: limits beyond those of the policy's input: slots that other projects may still claim.
    """

    left_s: FloatArray
    late_s: FloatArray
    may: BoolArray
    promised: BoolArray
    visiting: BoolArray
    priority: FloatArray
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Planned run of a job: its start and P90 end in seconds from now, and its configuration."""

    start_s: float
    end_s: float
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Miss of a deadline.

    Attributes:
        rivals: jobs that hold the capacity for which the deadline is missed; empty if no free cluster would do.
        earliest: the run that ends first beside the planned jobs; None if no size ever fits.
    """

    rivals: tuple[int, ...] = ()
    earliest: PlannedRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePlan:
    """Plan for the jobs with deadlines: runs that end in time, and misses, by row.

    `unknown` are the jobs without a forecast, and those beyond `MOST_PLANNED`.
    """

    met: Mapping[int, PlannedRun] = field(default_factory=dict)
    missed: Mapping[int, Miss] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Block:
    """Capacity (R,) taken by a job from `begin_s` to `end_s`.

    `row` is -1 for jobs outside the plan. Only jobs of a higher `priority` may displace it, and promises made before its
    run began, `run_s` ago.
    """

    begin_s: float
    end_s: float
    take: FloatArray
    row: int
    priority: float
    run_s: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Capacity and the jobs on it.

    Attributes:
        rows: rows with their capacities.
        slots: (C,) slots of the configurations.
        current: (J,) what each job holds now.
        smallest: (J,) smallest configuration that a running job keeps.
        run_s: (J,) seconds since the present run began.
        stays_s: (J,) seconds for which a running job may not be vacated; 0 for others.
        age_s: (J,) seconds since the submit.
    """

    rows: tuple[Row, ...]
    slots: IntArray
    current: IntArray
    smallest: IntArray
    run_s: FloatArray
    stays_s: FloatArray
    age_s: FloatArray


def plan_deadlines(deadlines: Deadlines, occupancy: Occupancy) -> DeadlinePlan:
    """Return the plan with which the fewest jobs miss their deadlines, as far as its bounded effort finds it.

    Promised jobs come first. Jobs that run come before others if as many are in time that way.
    """
    unknown = np.isnan(deadlines.late_s).any(axis=1)
    due = np.flatnonzero(np.isfinite(deadlines.left_s))
    order = sorted(
        np.setdiff1d(due, np.flatnonzero(unknown)).tolist(), key=lambda row: (deadlines.left_s[row], row)
    )
    promised, age_s = deadlines.promised, occupancy.age_s
    first = sorted(order, key=lambda row: (not promised[row], -age_s[row] if promised[row] else 0.0))
    counted = frozenset(first[:MOST_PLANNED])
    rows = [row for row in order if row in counted]
    in_time: BoolArray = np.asarray((deadlines.late_s <= deadlines.left_s[:, None]).any(axis=1))
    # A job that cannot be in time at all keeps its smallest size, like one without a deadline.
    possible = [row for row in rows if in_time[row]]
    timeline = _Timeline(deadlines, occupancy, possible)
    runs = occupancy.current != NOTHING
    kept = _promises(timeline, [row for row in possible if promised[row]])
    free = [row for row in possible if not promised[row]]
    met = timeline.placed(sorted(free, key=lambda row: not runs[row]), kept)
    swapped = _fewest_missed(timeline, free, kept)
    if len(swapped) > len(met):
        met = swapped
    left = [row for row in possible if row not in met]
    met = timeline.placed(sorted(left, key=lambda row: (not promised[row], not runs[row])), met)
    missed = {row: timeline.miss(row, met) for row in rows if row not in met}
    return DeadlinePlan(met=met, missed=missed, unknown=frozenset(due.tolist()) - frozenset(rows))


def _promises(timeline: _Timeline, rows: Sequence[int]) -> dict[int, PlannedRun]:
    """Return the runs of the promised jobs, given in the order of their deadlines.

    If not all fit in this order, those promised first come first.
    """
    met = timeline.placed(rows, {})
    if len(met) == len(rows):
        return met
    return timeline.placed(sorted(rows, key=lambda row: -timeline.occupancy.age_s[row]), {})


def _fewest_missed(
    timeline: _Timeline, rows: Sequence[int], kept: Mapping[int, PlannedRun]
) -> dict[int, PlannedRun]:
    """Return the runs `kept` and those of as many jobs as possible, from `rows` in the order of their deadlines."""
    met = dict(kept)
    swaps = _SWAPS
    for row in rows:
        run = timeline.place(row, met)
        if run is not None:
            met[row] = run
            continue
        own = timeline.least_area(row)
        areas = {one: timeline.area(run) for one, run in met.items() if one not in kept}
        largest = max(areas, key=areas.__getitem__, default=None)
        if largest is None or areas[largest] <= own or swaps <= 0:
            continue
        swaps -= 1
        chosen = {*met, row} - {largest}
        rebuilt = timeline.placed((one for one in rows if one in chosen), kept)
        if len(rebuilt) == len(met):
            met = rebuilt
    return met


class _Timeline:
    """Free capacity over time beside the jobs outside the plan."""

    def __init__(self, deadlines: Deadlines, occupancy: Occupancy, planned: Sequence[int]) -> None:
        self.deadlines, self.occupancy = deadlines, occupancy
        self._slots, self._current = occupancy.slots, occupancy.current
        rows = (*occupancy.rows, *deadlines.rows)
        jobs, columns = deadlines.late_s.shape
        self._by_size = np.argsort(occupancy.slots, kind="stable")
        self._capacity = np.array([row.capacity for row in rows])
        self._demand = np.array([row.demand for row in rows], dtype=np.float64).reshape(len(rows), columns)
        everybody = np.ones(jobs, dtype=np.bool_)
        self._counts = np.array([everybody if row.jobs is None else row.jobs for row in rows])
        self._blocks = self._others(planned)
        self._staying = [row for row in planned if occupancy.stays_s[row] > 0]

    def placed(self, rows: Iterable[int], beside: Mapping[int, PlannedRun]) -> dict[int, PlannedRun]:
        """Return the runs `beside`, and those of the jobs that fit, each beside those before it.

        Jobs that did not fit are tried again once others are planned: a run may end before the minimum run time for which
        its job would hold its slots without a plan.
        """
        met, missed = dict(beside), list(rows)
        while missed:
            before = len(met)
            for row in missed:
                run = self.place(row, met)
                if run is not None:
                    met[row] = run
            if len(met) == before or not self._staying:
                break
            missed = [row for row in missed if row not in met]
        return met

    def place(self, row: int, met: Mapping[int, PlannedRun]) -> PlannedRun | None:
        """Return the run of the smallest size that ends in time beside the runs `met`; None if there is none."""
        runs = self._runs(row, self._beside(row, met), float(self.deadlines.left_s[row]))
        first = next(runs, None)
        if first is None:
            return None
        # Runs come in ascending order of size.
        slots, held = self._slots, int(self._current[row])
        alike = takewhile(lambda run: slots[run.column] == slots[first.column], runs)
        return min((first, *alike), key=lambda run: (run.start_s, run.column != held, run.end_s))

    def miss(self, row: int, met: Mapping[int, PlannedRun]) -> Miss:
        """Return why a job misses its deadline beside the runs `met`."""
        left_s = float(self.deadlines.left_s[row])
        earliest = min(
            self._runs(row, self._beside(row, met), np.inf),
            key=lambda run: (run.end_s, run.column),
            default=None,
        )
        if next(self._runs(row, [], left_s), None) is None:
            return Miss(earliest=earliest)
        others = self._beside(row, {})
        fits = next(self._runs(row, others, left_s), None) is not None
        rivals = tuple(met) if fits else tuple(self._holders(row))
        return Miss(rivals=rivals, earliest=earliest)

    def area(self, run: PlannedRun) -> float:
        """Return the slot-seconds of a run."""
        return float(self._slots[run.column] * (run.end_s - run.start_s))

    def least_area(self, row: int) -> float:
        """Return the fewest slot-seconds with which a job could end in time on free slots."""
        late_s = self.deadlines.late_s[row]
        fits = late_s <= self.deadlines.left_s[row]
        return float((self._slots * np.where(fits, late_s, 0.0))[fits].min(initial=np.inf))

    def _holders(self, row: int) -> list[int]:
        """Return the running jobs that this job may not displace: those outside the plan, and those that stay."""
        occupancy, priority = self.occupancy, self.deadlines.priority
        stays = self._holding | (occupancy.stays_s > 0)
        stays &= (priority >= priority[row]) & (occupancy.run_s >= self._promised_s(row))
        return [one for one in np.flatnonzero(stays).tolist() if one != row]

    def _promised_s(self, row: int) -> float:
        """Return the seconds since a promise; 0 for a job without one, which counts every run."""
        return float(self.occupancy.age_s[row]) if self.deadlines.promised[row] else 0.0

    def _beside(self, row: int, met: Mapping[int, PlannedRun]) -> list[_Block]:
        """Return the blocks that the job cannot use."""
        mine, promised_s = self.deadlines.priority[row], self._promised_s(row)
        blocks = [*self._blocks, *self._stays(row, met)]
        return [block for block in blocks if block.priority >= mine and block.run_s >= promised_s] + [
            _Block(run.start_s, run.end_s, self._take(one, run.column), one, np.inf)
            for one, run in met.items()
        ]

    def _stays(self, row: int, met: Mapping[int, PlannedRun]) -> Iterator[_Block]:
        """Yield the blocks of the other jobs with deadlines that may not be vacated yet, until their planned starts."""
        occupancy = self.occupancy
        for one in self._staying:
            until_s = min(float(occupancy.stays_s[one]), met[one].start_s if one in met else np.inf)
            if one != row and until_s > 0:
                take = self._take(one, int(occupancy.smallest[one]))
                priority, run_s = float(self.deadlines.priority[one]), float(occupancy.run_s[one])
                yield _Block(0.0, until_s, take, one, priority, run_s)

    def _take(self, row: int, column: int) -> FloatArray:
        return np.where(self._counts[:, row], self._demand[:, column], 0.0)

    def _runs(self, row: int, blocks: Sequence[_Block], left_s: float) -> Iterator[PlannedRun]:
        """Yield the earliest run of each configuration that ends within `left_s` beside these blocks, by size."""
        begin_s = np.array([block.begin_s for block in blocks])
        end_s = np.array([block.end_s for block in blocks])
        take = np.array([block.take for block in blocks]).reshape(len(blocks), len(self._capacity))
        moments = np.unique([0.0, *begin_s, *end_s[np.isfinite(end_s)]])
        active = (begin_s <= moments[:, None]) & (moments[:, None] < end_s)
        free = self._capacity - active.astype(np.float64) @ take
        counts, late_s = self._counts[:, row], self.deadlines.late_s[row]
        in_time = (late_s <= left_s) & np.isfinite(late_s)
        for column in self._by_size[in_time[self._by_size]].tolist():
            # A row that the configuration does not load cannot keep it out.
            loaded = np.flatnonzero(counts & (self._demand[:, column] > 0))
            fits = (self._demand[loaded, column] <= free[:, loaded] + _ROUNDING).all(axis=1)
            blocked_s = np.minimum.accumulate(np.where(fits, np.inf, moments)[::-1])[::-1]
            ends_s = moments + late_s[column]
            starts = np.flatnonzero((blocked_s >= ends_s - _ROUNDING) & (ends_s <= left_s + _ROUNDING))
            if len(starts):
                yield PlannedRun(float(moments[starts[0]]), float(ends_s[starts[0]]), column)

    def _others(self, planned: Sequence[int]) -> list[_Block]:
        """Return the blocks of running jobs outside the plan at their smallest sizes, until their P90 finish.

        Ends are rounded up, so that few moments remain, and times since starts down to those since promises.
        """
        smallest, age_s = self.occupancy.smallest, self.occupancy.age_s
        holds = (self._current != NOTHING) & (smallest != NOTHING)
        holds[list(planned)] = False
        self._holding = holds
        rows = np.flatnonzero(holds)
        last_s = self.deadlines.left_s[list(planned)].max(initial=0.0)
        end_s = self.deadlines.late_s[rows, smallest[rows]]
        end_s = np.where(np.isfinite(end_s), end_s, np.inf)
        late = end_s > last_s
        grid_s = np.concatenate(
            (_spread(end_s[~late], _EVENTS), _spread(end_s[late], _LATE_EVENTS), [np.inf])
        )
        rounded_s = grid_s[np.searchsorted(grid_s, end_s)]
        promises_s = np.unique(
            np.append(age_s[[one for one in planned if self.deadlines.promised[one]]], 0.0)
        )
        runs_s = promises_s[np.searchsorted(promises_s, self.occupancy.run_s[rows], side="right") - 1]
        blocks: dict[tuple[float, float, float], FloatArray] = {}
        for row, end, run in zip(rows.tolist(), rounded_s.tolist(), runs_s.tolist(), strict=True):
            key = (end, float(self.deadlines.priority[row]), run)
            blocks[key] = blocks.get(key, 0.0) + self._take(row, int(smallest[row]))
        return [_Block(0.0, end, take, -1, priority, run) for (end, priority, run), take in blocks.items()]


def _spread(ends_s: FloatArray, count: int) -> FloatArray:
    """Return up to `count` of the finite ends, evenly spread and in order; the last one is among them."""
    finite_s = np.sort(ends_s[np.isfinite(ends_s)])
    return finite_s[np.linspace(0, len(finite_s) - 1, min(count, len(finite_s))).astype(np.int64)]
