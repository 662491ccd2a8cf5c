"""What limits of money and time forbid: caps on dollars per hour, what a job may spend, and deadlines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from service.domain.allocation.columns import Columns
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.risk import on_spot
from service.domain.allocation.rooms import Room
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.cluster import Cap, Limit, Snapshot
from service.domain.jobs import Job
from service.domain.perf.learned import Learned
from service.domain.perf.tables import GoodputTable
from service.domain.rental.spot import is_pressed

HOUR_S: Final = 3600.0
_MARGIN: Final = 1.05
"""A job goes over to a configuration only if it could be dearer by this factor: what is believed of speeds wavers."""


class Bar(IntEnum):
    """Why money or time keeps a job from a configuration."""

    NONE = 0
    OVER_BUDGET = 1
    DEADLINE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """What is known of how jobs (J,) would end in each column (J, C), for limits that look ahead.

    Attributes:
        goodput: reference samples per second, with what spot machines lose.
        low, high: what is reached in nine of ten cases, and what in one of ten.
        remaining: (J,) reference samples left; NaN where unknown, and where no speed is.
        start_s: (J,) seconds of training that it costs to go over to other machines.
    """

    goodput: FloatArray
    low: FloatArray
    high: FloatArray
    remaining: FloatArray
    start_s: FloatArray

    def cost_usd(self, usd_per_h: FloatArray) -> FloatArray:
        """(J, C) dollars until the end; infinite where it would never end. NaN where nobody knows how much is left."""
        runs = self.goodput > 0
        hours = self.remaining[:, None] / np.where(runs, self.goodput, 1.0) / HOUR_S
        return np.where(runs, np.where(usd_per_h > 0, hours * usd_per_h, 0.0), np.inf)


def prospects_of(
    jobs: Sequence[Job],
    current: IntArray,
    learned: Learned,
    table: GoodputTable,
    *,
    share: FloatArray | None,
    start_s: Sequence[float],
) -> Prospects:
    """The prospects of the jobs; `share` (J, C) is what spot machines leave of speeds, None: all."""
    # Samples say nothing of time where no speed is known: by a guessed one the shortest job would look like the longest.
    remaining = np.where(
        learned.measured | learned.related,
        np.array([_remaining(job) for job in jobs]) * _worth_of_a_sample(current, table),
        np.nan,
    )
    return Prospects(
        goodput=table.goodput if share is None else table.goodput * share,
        low=table.low if share is None else table.low * share,
        high=table.high if share is None else table.high * share,
        remaining=remaining,
        start_s=np.array(start_s, dtype=np.float64),
    )


def _worth_of_a_sample(current: IntArray, table: GoodputTable) -> FloatArray:
    """(J,) reference samples that one of a job's samples stands for, in steps of the batch that it has or would have."""
    if not table.goodput.size:
        return np.ones(len(current))
    column = np.where(current >= 0, current, table.goodput.argmax(axis=1))
    worth = table.efficiency[np.arange(len(current)), column]
    return np.where(worth > 0, worth, 1.0)


def _remaining(job: Job) -> float:
    """Samples left; NaN where the script does not say how many there are."""
    total = job.progress.total_samples
    return math.nan if total is None else float(max(total - job.progress.samples, 1))


def cap_rows(snapshot: Snapshot, jobs: Sequence[Job], columns: Columns) -> tuple[Row, ...]:
    """A row for every cap: what jobs may take that the round decides about, beside what the others hold."""
    deciding = {job.id for job in jobs}
    rows = []
    for cap in snapshot.caps:
        own = np.array([cap.project in {None, job.spec.project} for job in jobs], dtype=np.bool_)
        rows.append(
            Row(
                name=cap.row,
                capacity=max(0.0, cap.usd_per_h - _held_by_others(snapshot, cap, deciding)),
                demand=columns.configurations.usd_per_h,
                jobs=None if cap.project is None else own,
            )
        )
    return tuple(rows)


def _held_by_others(snapshot: Snapshot, cap: Cap, deciding: set[str]) -> float:
    """Dollars per hour of what jobs hold that no round can change now."""
    total = 0.0
    for job_id, keys in snapshot.holdings.items():
        job = snapshot.jobs.get(job_id)
        if job is None or job_id in deciding or cap.project not in {None, job.spec.project}:
            continue
        total += sum(snapshot.usd_per_slot_h_of_key(key) for key in keys)
    return total


def bars_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    rooms: Mapping[str, Room],
    *,
    open_to: BoolArray,
    allowed: BoolArray,
    current: IntArray,
    prospects: Prospects,
) -> IntArray:
    """(J, C) a `Bar` for each. `open_to` (J, C) is what jobs could have now otherwise, their present column included;
    `allowed` (J, C) what their specs allow.
    """
    bars = np.zeros(open_to.shape, dtype=np.int64)
    limited = [
        row
        for row, job in enumerate(jobs)
        if job.id in snapshot.limits and not np.isnan(prospects.remaining[row])
    ]
    if limited:
        cost = prospects.cost_usd(columns.configurations.usd_per_h)
        for row in limited:
            limit = snapshot.limits[jobs[row].id]
            over = _over_budget(limit, cost[row], open_to[row], int(current[row]))
            bars[row, over] = Bar.OVER_BUDGET
    pressed = [row for row, job in enumerate(jobs) if job.spec.goal.deadline and job.spec.market == "mixed"]
    spot = on_spot(columns) if pressed else np.zeros(0, dtype=np.bool_)
    for row in pressed if spot.any() else ():
        firm = open_to[row] & ~spot & (bars[row] == Bar.NONE) & _has_room(columns, rooms)
        if firm.any() and _is_pressed(
            snapshot, jobs[row], row, allowed[row] & ~spot, spot, current, prospects
        ):
            bars[row, spot] = Bar.DEADLINE
    return bars


def _over_budget(limit: Limit, cost: FloatArray, open_to: BoolArray, current: int) -> BoolArray:
    """(C,) what would cost more than is left, as long as something does not; else, for a job that is to shrink, all but
    the cheapest.
    """
    dearest = np.full(len(cost), limit.left_usd / _MARGIN)
    if current >= 0:
        dearest[current] = limit.left_usd
    over = ~(cost <= dearest)
    if (open_to & ~over).any():
        return over
    over[:] = False
    if limit.on_budget == "shrink" and (open_to & np.isfinite(cost)).any():
        over[:] = True
        over[np.where(open_to, cost, np.inf).argmin()] = False
    return over


def _has_room(columns: Columns, rooms: Mapping[str, Room]) -> BoolArray:
    """(C,) what the rooms could hold if nobody else was there."""
    room = np.array([one.room.sum() for one in rooms.values()])
    return np.asarray((columns.demand <= room).all(axis=1))


def _is_pressed(
    snapshot: Snapshot,
    job: Job,
    row: int,
    firm: BoolArray,
    spot: BoolArray,
    current: IntArray,
    prospects: Prospects,
) -> bool:
    """Whether the time left is only enough on machines that stay (the Uniform Progress rule of Can't Be Late, NSDI'24):
    not more than the work left takes there, and to go over to them. A job that is there already goes back only if there
    is time for both ways.
    """
    best = float(np.where(firm, prospects.low[row], 0.0).max(initial=0.0))
    left = float(prospects.remaining[row])
    if job.spec.goal.deadline is None or np.isnan(left) or not best > 0:
        return False
    left_s = (job.spec.goal.deadline - snapshot.now).total_seconds()
    there = current[row] >= 0 and not spot[current[row]]
    return is_pressed(
        left_s=left_s, work_s=left / best, change_s=float(prospects.start_s[row]), changes=2 if there else 1
    )
