"""Ideal to compare a cluster with: equal fractional shares of its slots at any time, and changes that cost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidJob:
    """Job of the fluid model.

    Attributes:
        submit_s: submit time.
        work_s: seconds of work on one slot.
        part: share of a step on one slot that does not become shorter with more slots.
        minimum, maximum: fewest and most slots.
        pins: times from which the size is fixed, ascending; None ends the fixed size.
    """

    submit_s: float
    work_s: float
    part: float
    minimum: int
    maximum: int
    pins: tuple[tuple[float, int | None], ...] = ()

    def bounds(self, at_s: float) -> tuple[int, int]:
        """Return the fewest and the most slots that the job may have at a time."""
        size = next((size for since_s, size in reversed(self.pins) if since_s <= at_s), None)
        return (self.minimum, self.maximum) if size is None else (size, size)

    def speed(self, share: float, minimum: int) -> float:
        """Return the seconds of work that are done in a second on `share` slots, interpolated between two sizes.

        A share below the minimum means that the job has its minimum for that part of the time.
        """
        if share < minimum:
            return share / minimum * self._speed_on(minimum)
        below = math.floor(share)
        speed = self._speed_on(below)
        return speed + (share - below) * (self._speed_on(below + 1) - speed)

    def _speed_on(self, slots: int) -> float:
        return 1.0 / (self.part + (1.0 - self.part) / slots)


def equal_shares(bounds: Sequence[tuple[int, int]], slots: int) -> list[float]:
    """Return the slots of each job: equal for all, within the minimums and maximums.

    If the minimums do not fit, they are ignored, because the jobs take turns.
    """
    if sum(least for least, _ in bounds) > slots:
        bounds = [(0, most) for _, most in bounds]
    if sum(most for _, most in bounds) <= slots:
        return [float(most) for _, most in bounds]

    def at(level: float) -> list[float]:
        return [min(max(level, least), most) for least, most in bounds]

    for low, high in pairwise(sorted({float(bound) for both in bounds for bound in both})):
        before, after = sum(at(low)), sum(at(high))
        if before >= slots:
            return at(low)
        if after >= slots:
            return at(low + (slots - before) * (high - low) / (after - before))
    raise AssertionError("the maximums do not fit, so some level fills the slots")


def ideal_ends(jobs: Sequence[FluidJob], slots: int) -> list[float]:
    """Return the time at which each job would end if all present jobs always had equal shares of the slots."""
    left = [job.work_s for job in jobs]
    ends = [math.inf] * len(jobs)
    changes = sorted({job.submit_s for job in jobs} | {since_s for job in jobs for since_s, _ in job.pins})
    now_s = min(job.submit_s for job in jobs)
    while any(math.isinf(end) for end in ends):
        there = [i for i, job in enumerate(jobs) if job.submit_s <= now_s and math.isinf(ends[i])]
        bounds = [jobs[i].bounds(now_s) for i in there]
        shares = equal_shares(bounds, slots)
        speeds = [
            jobs[i].speed(share, least) for i, share, (least, _) in zip(there, shares, bounds, strict=True)
        ]
        done_s = [now_s + left[i] / speed for i, speed in zip(there, speeds, strict=True)]
        next_s = min([*done_s, *(at_s for at_s in changes if at_s > now_s)])
        for i, speed, end_s in zip(there, speeds, done_s, strict=True):
            left[i] -= (next_s - now_s) * speed
            if end_s <= next_s:
                ends[i] = end_s
        now_s = next_s
    return ends
