"""Training on spot machines: the cost of interruptions, and the rule for moving to on-demand machines. Pure.

The module has three parts: the cost of losses for a plan, depending on whether some machines stay; the
Uniform Progress rule for deadlines (Wu et al., "Can't Be Late", NSDI'24); and, by that rule, the number of
machines to hold now on each market. `hazards` learns the rate of interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.contract.values.checkpoint_interval import checkpoint_interval_s
from service.domain.perf.spot_rate import HOUR_S, checkpoint_losses_per_h, is_pressed, spot_share
from service.domain.rental.plans import MachinePlan

ANCHOR_SHARE: Final = 0.1
"""Largest extra cost of an anchor, as a share of the on-demand price."""
AWAY_S: Final = 1800.0
"""Seconds until a lost machine is replaced by another on the market, if several zones are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of changes to a job, in seconds of training: a checkpoint, a restart from one, a live resize.

    `live` is true if the job survives the loss of a member while another lives.
    """

    checkpoint_s: float = 5.0
    restart_s: float = 30.0
    resize_s: float = 1.0
    live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Effect of losses on a plan.

    Attributes:
        losses_per_h: Losses of all machines per hour.
        loss_s: Seconds of training that a loss costs on average.
        interval_s: Seconds from one checkpoint to the next; infinite if losses need none.
        share: Share of the speed that remains after checkpoints.
        present: Share of the time in which a spot machine is present.
        reason: Explanation for users.
    """

    losses_per_h: float
    loss_s: float
    interval_s: float
    share: float
    present: float
    reason: str

    @property
    def left(self) -> float:
        """Share of the speed that remains after checkpoints and losses."""
        return self.share / (1 + self.losses_per_h / HOUR_S * self.loss_s)


def exposure(plan: MachinePlan, costs: Costs) -> Exposure:
    """Return the effect of losses of its spot machines on a plan."""
    losses_per_h, machines = plan.hazard_per_h, plan.spot_machines
    if losses_per_h <= 0:
        return Exposure(
            losses_per_h=0.0,
            loss_s=0.0,
            interval_s=math.inf,
            share=1.0,
            present=1.0,
            reason="no spot machines, so no interruptions",
        )
    hazard = losses_per_h / machines
    present = 1 / (1 + hazard * AWAY_S / HOUR_S)
    if costs.live and plan.anchored_slots:
        return Exposure(
            losses_per_h=losses_per_h,
            loss_s=costs.resize_s,
            interval_s=math.inf,
            share=1.0,
            present=present,
            reason=f"{_losses(losses_per_h)}, each a pause of {costs.resize_s:.3g} s: an anchor keeps a live replica",
        )
    # With several live members, a loss causes a rollback only if it takes all of them.
    fatal = checkpoint_losses_per_h([hazard] * machines, in_place=costs.live)
    interval_s = costs.checkpoint_s + checkpoint_interval_s(losses_per_h=fatal, cost_s=costs.checkpoint_s)
    share = spot_share(
        losses_per_h=0.0, checkpoint_s=costs.checkpoint_s, interval_s=interval_s, restart_s=0.0
    )
    fatal_share = min(fatal / losses_per_h, 1.0)
    back_s = interval_s / 2 + costs.restart_s
    every = (
        "each"
        if fatal_share > 1 - 1e-9
        else f"{fatal_share:.0%} of the losses take all machines: each of those"
    )
    return Exposure(
        losses_per_h=losses_per_h,
        loss_s=fatal_share * back_s + (1 - fatal_share) * costs.resize_s,
        interval_s=interval_s,
        share=share,
        present=present,
        reason=f"{_losses(losses_per_h)}, {every} costs {back_s:.0f} s back to a checkpoint, one every {interval_s:.0f} s",
    )


def _losses(per_h: float) -> str:
    return f"loses a machine {per_h:.2g} times an hour"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotHolding:
    """Machines that a job should hold now, by market, and the reason."""

    on_demand: int
    spot: int
    reason: str


def hold(pace: JobPace, size: Sizing, *, spot_ready: int, spot_available: int, filled: bool) -> SpotHolding:
    """Return the machines of each market that a job should hold now.

    This is the Uniform Progress rule, extended to jobs that hold machines of both markets at once.

    Args:
        pace: Progress of the job.
        size: Sizes of the job.
        spot_ready: Spot machines that train now.
        spot_available: Spot machines that are held or can be rented. Machines that are not ready yet do not replace missing
            ones: an on-demand machine is released only when its successor trains.
        filled: True if on-demand machines now stand in for missing spot machines.
    """
    if pace.done_s >= pace.work_s:
        return SpotHolding(on_demand=0, spot=0, reason="done")
    if pace.pressed:
        left_s = max(pace.deadline_s - pace.elapsed_s, 0.0)
        return SpotHolding(
            on_demand=size.full,
            spot=0,
            reason=f"on demand to the end: {left_s:.0f} s to the deadline, {pace.work_s - pace.done_s:.0f} s of work",
        )
    spot = min(spot_available, size.most - size.anchors)
    missing = size.full - size.anchors - min(spot_ready, spot)
    if missing <= 0:
        return SpotHolding(on_demand=size.anchors, spot=spot, reason="all spot machines are present")
    starting = spot >= size.full - size.anchors and not filled
    if starting:
        return SpotHolding(on_demand=size.anchors, spot=spot, reason="spot machines are starting")
    if pace.behind or (filled and not pace.ahead):
        return SpotHolding(
            on_demand=size.anchors + missing,
            spot=spot,
            reason=f"behind uniform progress: {missing} on demand in place of missing spot machines",
        )
    return SpotHolding(
        on_demand=size.anchors, spot=spot, reason="ahead of uniform progress: waits for spot machines"
    )
