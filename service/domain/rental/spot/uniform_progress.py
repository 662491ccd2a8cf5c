"""Uniform Progress: the machines that a job holds on each market, so that it ends in time at the least cost. Pure.

The rule is that of Wu et al., "Can't Be Late" (NSDI'24), extended to jobs that hold machines of both markets at once.
`choice` applies it to the jobs of the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from service.domain.cluster.spot_rate import is_pressed

ANCHOR_SHARE: Final = 0.1
"""Largest extra cost of an anchor, as a share of the on-demand price."""
PATIENCE: Final = 1.1
"""Target time of a job, as a multiple of its time on demand at full size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPace:
    """Progress of a job, in seconds.

    Attributes:
        work_s: Duration of the whole work at full size on demand.
        done_s: Part of `work_s` that is done.
        elapsed_s: Time since the job began.
        deadline_s: Hard deadline from the beginning; infinite if there is none.
        target_s: Time at which the job should be done, at most `deadline_s`. Uniform progress is relative to it.
        change_s: Cost of a change of all machines: launch and restart.
    """

    work_s: float
    done_s: float
    elapsed_s: float
    deadline_s: float
    target_s: float
    change_s: float

    @property
    def pressed(self) -> bool:
        """True if the job must be on demand from now on: the time left is needed, including this change and one more."""
        return is_pressed(
            left_s=self.deadline_s - self.elapsed_s,
            work_s=self.work_s - self.done_s,
            change_s=self.change_s,
            changes=2,
        )

    @property
    def behind(self) -> bool:
        """True if less is done than uniform progress towards the target requires."""
        return self.done_s < self.work_s * self.elapsed_s / max(self.target_s, 1e-9)

    @property
    def ahead(self) -> bool:
        """True if the job is so far ahead that it can release on-demand machines without falling behind at once."""
        later_s = self.elapsed_s + 2 * self.change_s
        return self.done_s >= self.work_s * min(later_s / max(self.target_s, 1e-9), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Sizes of a job that uses both markets, in machines.

    `full` is the size that its user would rent on demand. `most` is the largest size while spot machines are
    present. `anchors` is the number of on-demand machines that it always keeps.
    """

    full: int
    most: int
    anchors: int


def sizing(speed: Sequence[float], *, full: int, spot_price: float) -> Sizing:
    """Return the sizing of a job whose speed on n machines is `speed[n - 1]`.

    A spot machine costs `spot_price` times an on-demand machine. The job grows while the spot machines beyond
    the full size make as much progress per dollar as the full size on demand. It keeps an anchor if that
    costs at most `ANCHOR_SHARE` of the on-demand price.
    """
    per_usd = speed[full - 1] / full
    least = per_usd * spot_price
    wider = range(full + 1, len(speed) + 1)
    most = max((n for n in wider if speed[n - 1] - speed[full - 1] >= least * (n - full)), default=full)
    anchors = int(full > 1 and (1 - spot_price) / full <= ANCHOR_SHARE)
    return Sizing(full=full, most=most, anchors=anchors)


class SpotPhase(StrEnum):
    """State of a job that holds machines of both markets: the reason for its holding."""

    DONE = "done"
    PRESSED = "pressed"
    """The time left suffices only on demand."""
    PRESENT = "present"
    """Enough spot machines train."""
    STARTING = "starting"
    """Enough spot machines are held, and some of them are starting."""
    BEHIND = "behind"
    """On-demand machines replace missing spot machines, because the job is behind uniform progress."""
    AHEAD = "ahead"
    """The job is ahead of uniform progress, so it waits for spot machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotHolding:
    """Machines that a job should hold now, by market, and the reason."""

    on_demand: int
    spot: int
    phase: SpotPhase
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """Machines that a job has, or could have now, on each market.

    Attributes:
        spot_ready: Spot machines that can train now.
        spot_available: Spot machines that are held or can be requested. Machines that are not ready do not
            replace missing ones: an on-demand machine is released only when its successor can train.
        on_demand_ready: On-demand machines that can train now.
        filled: True if on-demand machines now replace missing spot machines.
    """

    spot_ready: int
    spot_available: int
    on_demand_ready: int
    filled: bool


def pace_of(
    *,
    work_s: float,
    done: float,
    elapsed_s: float,
    deadline_s: float,
    change_s: float,
    safe_s: float | None = None,
) -> JobPace:
    """Return the pace of a job.

    Its target is `PATIENCE` times its time on demand, or an earlier deadline.

    Args:
        work_s: Expected duration of the whole work at full size on demand.
        done: Share of the work that is done, from 0 to 1.
        elapsed_s: Time since the job began.
        deadline_s: Hard deadline from the beginning; infinite if there is none.
        change_s: Cost of a change of all machines.
        safe_s: Duration of the whole work that the deadline must leave room for; None: `work_s`.
    """
    safe_s = work_s if safe_s is None else safe_s
    return JobPace(
        work_s=safe_s,
        done_s=done * safe_s,
        elapsed_s=elapsed_s,
        deadline_s=deadline_s,
        target_s=min(deadline_s, PATIENCE * (change_s + work_s)),
        change_s=change_s,
    )


def hold(pace: JobPace, size: Sizing, market: SpotMarket) -> SpotHolding:
    """Return the machines of each market that a job should hold now."""
    if pace.done_s >= pace.work_s:
        return SpotHolding(on_demand=0, spot=0, phase=SpotPhase.DONE, reason="done")
    if pace.pressed:
        left_s = max(pace.deadline_s - pace.elapsed_s, 0.0)
        missing = max(size.full - market.on_demand_ready, 0)
        return SpotHolding(
            on_demand=size.full,
            spot=min(market.spot_ready, missing),
            phase=SpotPhase.PRESSED,
            reason=f"on demand to the end: {left_s:.0f} s to the deadline, {pace.work_s - pace.done_s:.0f} s of work",
        )
    spot = min(market.spot_available, size.most - size.anchors)
    missing = size.full - size.anchors - min(market.spot_ready, spot)
    on_demand = size.anchors
    if missing <= 0:
        phase, reason = SpotPhase.PRESENT, "all spot machines are present"
    elif spot >= size.full - size.anchors and not market.filled:
        phase, reason = SpotPhase.STARTING, "spot machines are starting"
    elif pace.behind or (market.filled and not pace.ahead):
        on_demand += missing
        phase = SpotPhase.BEHIND
        reason = f"behind uniform progress: {missing} on demand in place of missing spot machines"
    else:
        phase, reason = SpotPhase.AHEAD, "ahead of uniform progress: waits for spot machines"
    return SpotHolding(on_demand=on_demand, spot=spot, phase=phase, reason=reason)
