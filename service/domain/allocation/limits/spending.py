"""Limits on money, time and markets: caps on dollars per hour, spending limits of jobs, deadlines, and market limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.limits.risk import on_spot
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.snapshot import Cap, Limit, Snapshot
from service.domain.cluster.spot_rate import HOUR_S, is_pressed
from service.domain.jobs.job import Job
from service.domain.jobs.work import worth_of_work
from service.domain.perf.goal_target import work_left
from service.domain.perf.learned import LearnedModels
from service.domain.perf.tables import GoodputTable
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_MARGIN: Final = 1.05
"""Safety factor on the cost of a configuration to which a job changes, because speed estimates vary."""


class SpendingBar(IntEnum):
    """Limit of money, time or market that excludes a job from a configuration."""

    NONE = 0
    OVER_BUDGET = 1
    DEADLINE = 2
    MARKET = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """Expected course of jobs (J,) in each column (J, C), for limits that look ahead.

    Attributes:
        goodput: reference samples per second, after the expected loss from spot interruptions.
        low, high: 10th and 90th percentile of the goodput.
        remaining: (J,) reference samples left; NaN if they or the job's speed are unknown.
        start_s: (J,) seconds of training that a change to other machines costs.
    """

    goodput: FloatArray
    low: FloatArray
    high: FloatArray
    remaining: FloatArray
    start_s: FloatArray

    def cost_usd(self, usd_per_h: FloatArray) -> FloatArray:
        """Return the dollars (J, C) until the end: infinite if the job would never end, NaN if the rest is
        unknown.
        """
        runs = self.goodput > 0
        hours = self.remaining[:, None] / np.where(runs, self.goodput, 1.0) / HOUR_S
        return np.where(runs, np.where(usd_per_h > 0, hours * usd_per_h, 0.0), np.inf)


def prospects_of(
    jobs: Sequence[Job],
    current: IntArray,
    learned: LearnedModels,
    table: GoodputTable,
    *,
    share: FloatArray | None,
    start_s: Sequence[float],
) -> Prospects:
    """Return the prospects of the jobs. `share` (J, C) is the fraction of speed after interruptions; None for
    all of it.
    """
    # Samples give no time if no speed is known: with a guessed speed the shortest job might look the longest.
    remaining = np.where(
        learned.measured | learned.related,
        np.maximum([work_left(job.progress) for job in jobs], 1.0) * worth_of_a_sample(jobs, current, table),
        np.nan,
    )
    return Prospects(
        goodput=table.goodput if share is None else table.goodput * share,
        low=table.low if share is None else table.low * share,
        high=table.high if share is None else table.high * share,
        remaining=remaining,
        start_s=np.array(start_s, dtype=np.float64),
    )


def worth_of_a_sample(jobs: Sequence[Job], current: IntArray, table: GoodputTable) -> FloatArray:
    """Return the reference samples (J,) per unit of each job's work, at the batch that it has or would have."""
    if not table.goodput.size:
        return np.ones(len(current))
    column = np.where(current >= 0, current, table.goodput.argmax(axis=1))
    at = np.arange(len(current)), column
    rows = zip(jobs, table.efficiency[at], table.counted[at], strict=True)
    return np.array([float(worth_of_work(*row)) for row in rows])


def cap_rows(snapshot: Snapshot, jobs: Sequence[Job], columns: Columns) -> tuple[Row, ...]:
    """Return a row for every cap: the dollars left for the jobs of the round beside those of other jobs."""
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
    """Return the dollars per hour of slots held by jobs that the round cannot change now."""
    return sum(
        sum(snapshot.usd_per_slot_h_of_key(key) for key in keys)
        for job_id, keys in snapshot.holdings.items()
        if (job := snapshot.jobs.get(job_id)) is not None
        and job_id not in deciding
        and cap.project in {None, job.spec.project}
    )


def bars_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    rooms: Mapping[str, PoolCapacity],
    *,
    open_to: BoolArray,
    allowed: BoolArray,
    current: IntArray,
    prospects: Prospects,
) -> IntArray:
    """Return a `SpendingBar` for each configuration (J, C).

    `open_to` (J, C) is what jobs could have now otherwise, including their present column. `allowed` (J, C)
    is what their specs allow.
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
            bars[row, over] = SpendingBar.OVER_BUDGET
    pressed = [row for row, job in enumerate(jobs) if job.spec.goal.deadline and job.spec.market == "mixed"]
    spot = on_spot(columns) if pressed else np.zeros(0, dtype=np.bool_)
    for row in pressed if spot.any() else ():
        firm = open_to[row] & ~spot & (bars[row] == SpendingBar.NONE) & _has_room(columns, rooms)
        if firm.any() and _is_pressed(
            snapshot, jobs[row], row, allowed[row] & ~spot, spot, current, prospects
        ):
            bars[row, spot] = SpendingBar.DEADLINE
    for row, job in enumerate(jobs):
        if job.id in snapshot.market_limits:
            beyond = _beyond(snapshot.market_limits[job.id], columns)
            bars[row, beyond & (bars[row] == SpendingBar.NONE)] = SpendingBar.MARKET
    return bars


def _beyond(limit: MarketLimit, columns: Columns) -> BoolArray:
    """Return the columns (C,) with more slots of a pool than the rule of the spot market chose for a job."""
    most = np.array([limit.slots.get(pool.priced_as, np.inf) for pool in columns.pools])
    return np.asarray((columns.parts > most).any(axis=1))


def _over_budget(limit: Limit, cost: FloatArray, open_to: BoolArray, current: int) -> BoolArray:
    """Return the columns (C,) that would cost more than is left, as long as some column would not.

    If all would, the result for a job that is to shrink is all columns but the cheapest.
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


def _has_room(columns: Columns, rooms: Mapping[str, PoolCapacity]) -> BoolArray:
    """Return the columns (C,) that the pools could hold if they had no other jobs."""
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
    """Return True if the time left suffices only on on-demand machines.

    This is the Uniform Progress rule of Can't Be Late (NSDI'24): the time left is at most the time for the
    remaining work there plus the change. A job that is already there returns to spot only if there is time
    for both changes.
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
