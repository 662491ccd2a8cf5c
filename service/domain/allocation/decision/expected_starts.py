"""Expected starts of waiting jobs: when running jobs are expected to have freed enough slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.reason_texts import named
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.pools import Pool
from service.domain.jobs.job import Job
from service.domain.policies.framework.policy import Choices
from service.domain.shared.arrays import IntArray

_ROUNDED_S = ((15 * 60.0, 60.0), (6 * 3600.0, 300.0), (math.inf, 1800.0))
"""Waits up to the first number of seconds are told in steps of the second one."""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The wait in seconds until a job is expected to start, and the jobs that end before and free its slots."""

    wait_s: float
    ending: tuple[Job, ...]

    def at(self, now: datetime) -> datetime:
        """Return the expected start, rounded."""
        return rounded(now, self.wait_s)

    def text(self, now: datetime, project: str) -> str:
        """Return the expected start for the users of a project."""
        ends = "ends" if len(self.ending) == 1 else "end"
        at = self.at(now)
        day = f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
        return f"expected to start at about {day} UTC, when {named(self.ending, project)} {ends}"


def rounded(now: datetime, wait_s: float) -> datetime:
    """Return the moment after a wait, rounded up: a longer wait is known less exactly."""
    step_s = next(step_s for most_s, step_s in _ROUNDED_S if wait_s <= most_s)
    at_s = now.timestamp() + wait_s
    return now + timedelta(seconds=math.ceil(at_s / step_s) * step_s - now.timestamp())


def queue_of(round_: Round, choices: Choices) -> tuple[int, ...]:
    """Return the rows of the jobs that get nothing in a round, in the order of their turns."""
    smallest = round_.contest.seats.smallest
    waits = (round_.given.current == NOTHING) & (choices.chosen == NOTHING) & (smallest != NOTHING)
    rows: IntArray = np.flatnonzero(waits)
    order = np.lexsort((-round_.given.waited_s[rows], -round_.contest.tenure.priority[rows]))
    return tuple(int(row) for row in rows[order])


def expected_start(
    round_: Round, row: int, queue: Sequence[int], left: Mapping[Pool, int]
) -> ExpectedStart | None:
    """Return the expected start of a waiting job; None where nothing is known about it.

    Running jobs keep their sizes and speeds until they end. The slots that they free, and those that are
    `left` over, go to the jobs of the queue in turn.
    """
    if row not in queue:
        return None
    snapshot, spec = round_.snapshot, round_.jobs[row].spec
    slots = round_.columns.configurations.slots
    least = slots[round_.contest.seats.smallest[list(queue[: queue.index(row) + 1])]]
    missing = int(least.sum()) - sum(count for pool, count in left.items() if pool.serves(spec))
    if missing <= 0:
        return None
    freed = []
    for job in snapshot.jobs.values():
        pools = map(snapshot.pool_of, snapshot.slots_held_by(job.id))
        fitting = sum(pool is not None and pool.serves(spec) for pool in pools)
        left_s = job.progress.time_left_s
        if fitting and left_s is not None and job.state is JobState.RUNNING:
            freed.append((left_s, job.id, fitting))
    ending: list[Job] = []
    for left_s, job_id, fitting in sorted(freed):
        ending.append(snapshot.jobs[job_id])
        missing -= fitting
        if missing <= 0:
            return ExpectedStart(left_s, tuple(ending))
    return None
