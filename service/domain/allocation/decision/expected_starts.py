"""Expected starts of waiting jobs: when running jobs are expected to have freed enough slots."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import numpy as np

from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.reason_texts import named
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.pools import Pool
from service.domain.jobs.job import Job
from service.domain.policies.framework.policy import Choices
from service.domain.shared.arrays import IntArray

_ROUNDED_S = ((5 * 60.0, 60.0), (3600.0, 300.0), (6 * 3600.0, 1800.0), (math.inf, 7200.0))
"""Waits up to the first number of seconds are told in steps of the second one."""
_SPREAD: Final = 1.25
"""Factor around an expected wait that makes its range: sizes and speeds of the running jobs change until they end."""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The wait in seconds until a job is expected to start, and the jobs that end before and free its slots."""

    wait_s: float
    ending: tuple[Job, ...]

    def between(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the range of the expected start, rounded outwards."""
        return rounded(now, self.wait_s / _SPREAD, up=False), rounded(now, self.wait_s * _SPREAD)

    def text(self, now: datetime, project: str) -> str:
        """Return the expected start for the users of a project."""
        ends = "ends" if len(self.ending) == 1 else "end"
        low, high = self.between(now)
        by = _clock(high, now.date())
        when = (
            f"between {_clock(low, now.date())} and {_clock(high, low.date())}" if low > now else f"by {by}"
        )
        return f"expected to start {when} UTC, when {named(self.ending, project)} {ends}"


def _clock(at: datetime, today: date) -> str:
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"


def rounded(now: datetime, wait_s: float, *, up: bool = True) -> datetime:
    """Return the moment after a wait, rounded up or down: a longer wait is known less exactly."""
    step_s = next(step_s for most_s, step_s in _ROUNDED_S if wait_s <= most_s)
    at_s = now.timestamp() + wait_s
    whole = math.ceil(at_s / step_s) if up else math.floor(at_s / step_s)
    return now + timedelta(seconds=whole * step_s - now.timestamp())


def queue_of(round_: Round, choices: Choices) -> tuple[int, ...]:
    """Return the rows of the jobs that get nothing in a round, in the order of their turns."""
    smallest = round_.contest.seats.smallest
    waits = (round_.given.current == NOTHING) & (choices.chosen == NOTHING) & (smallest != NOTHING)
    rows: IntArray = np.flatnonzero(waits)
    order = np.lexsort((-round_.given.waited_s[rows], -round_.contest.tenure.priority[rows]))
    return tuple(int(row) for row in rows[order])


class Ends:
    """Expected ends of running jobs, for the starts of jobs that wait in a round.

    What depends only on the pools that serve a job is found once for all jobs with the same ones: a round has many.
    """

    def __init__(self, round_: Round, choices: Choices) -> None:
        snapshot, rows = round_.snapshot, queue_of(round_, choices)
        least = round_.columns.configurations.slots[round_.contest.seats.smallest[list(rows)]]
        self._needs: dict[int, int] = dict(zip(rows, np.cumsum(least).tolist(), strict=True))
        """Slots that a waiting job and those before it need, by row."""
        ends = [
            (left_s, job.id, Counter(map(snapshot.pool_of, snapshot.slots_held_by(job.id))))
            for job in snapshot.jobs.values()
            if job.state is JobState.RUNNING and (left_s := job.progress.time_left_s) is not None
        ]
        self._ends = [
            (left_s, snapshot.jobs[job_id], held)
            for left_s, job_id, held in sorted(ends, key=lambda one: one[:2])
        ]
        self._freed: dict[Set[Pool], tuple[list[int], list[float], list[Job]]] = {}

    def start_of(self, row: int, serving: Set[Pool], left: int) -> ExpectedStart | None:
        """Return the expected start of the waiting job of a row; None where nothing is known about it.

        Running jobs keep their sizes and speeds until they end. The slots of the pools `serving` it that they free, and
        the `left` ones over there, go to the jobs of the queue in turn.
        """
        missing = self._needs.get(row, 0) - left
        if missing <= 0:
            return None
        if serving not in self._freed:
            self._freed[serving] = self._freed_in(serving)
        freed, lefts_s, jobs = self._freed[serving]
        last = bisect_left(freed, missing)
        return ExpectedStart(lefts_s[last], tuple(jobs[: last + 1])) if last < len(freed) else None

    def _freed_in(self, pools: Set[Pool]) -> tuple[list[int], list[float], list[Job]]:
        """Return the slots of the pools that are free after the end of each job that has some, its time, and the job."""
        freed, lefts_s, jobs = list[int](), list[float](), list[Job]()
        for left_s, job, held in self._ends:
            fitting = sum(count for pool, count in held.items() if pool in pools)
            if fitting:
                freed.append(fitting + (freed[-1] if freed else 0))
                lefts_s.append(left_s)
                jobs.append(job)
        return freed, lefts_s, jobs
