"""Training on machines that may be taken away: what that costs, and when to stop relying on them. Pure.

Three things: what losses cost a plan, by whether something of it stays; the Uniform Progress rule for deadlines (Wu et al.,
"Can't Be Late", NSDI'24); and, by that rule, how many machines of which market to hold now. How often machines are taken away
is learned in `hazards`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.domain.rental.plans import Architecture, Plan
from service.domain.rental.spot_rate import HOUR_S, best_interval_s, spot_share

TOGETHER: Final = 0.45
"""Of the losses that one of several machines in a zone sees, those that take all of them at once. From the traces of 4 and
16 V100s of "Can't Be Late": 0.3 to 0.75, median 0.46."""
ANCHOR_SHARE: Final = 0.1
"""An anchor may cost so much of the price on demand."""
REMOTE_SHARE: Final = 0.1
"""What a checkpoint into the memory of remote nodes takes of one to storage."""
AWAY_S: Final = 1800.0
"""Until a machine that was taken away is replaced by another of the market, where several zones are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What changes cost a job, in seconds of training: a checkpoint, a restart from one, a live resize. `live` says whether
    it survives the loss of a member while another lives.
    """

    checkpoint_s: float = 5.0
    restart_s: float = 30.0
    resize_s: float = 1.0
    live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What losses do to a plan: `losses_per_h` in all, `loss_s` of training that one costs on average, `interval_s` between
    checkpoints (infinite: none is needed for it), `share` of the speed that checkpoints leave, `present` the share of
    time for which all spot machines are there, `reason` for people.
    """

    losses_per_h: float
    loss_s: float
    interval_s: float
    share: float
    present: float
    reason: str

    @property
    def left(self) -> float:
        """The share of the speed that checkpoints and losses leave."""
        return self.share / (1 + self.losses_per_h / HOUR_S * self.loss_s)


def exposure(plan: Plan, costs: Costs) -> Exposure:
    """What losses of its spot machines do to a plan."""
    losses_per_h, machines = plan.hazard_per_h, plan.spot_machines
    if losses_per_h <= 0:
        return Exposure(
            losses_per_h=0.0,
            loss_s=0.0,
            interval_s=math.inf,
            share=1.0,
            present=1.0,
            reason="no machine is taken away",
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
    if plan.architecture is Architecture.TIERING:
        # A checkpoint is a copy into their memory then (DeepVM, Fig. 6).
        costs = replace(costs, checkpoint_s=costs.checkpoint_s * REMOTE_SHARE)
    # With several live members a loss rolls back only when it takes them all.
    fatal = hazard * (TOGETHER if machines > 1 else 1.0) if costs.live else losses_per_h
    interval_s = best_interval_s(losses_per_h=fatal, checkpoint_s=costs.checkpoint_s)
    share = spot_share(
        losses_per_h=0.0, checkpoint_s=costs.checkpoint_s, interval_s=interval_s, restart_s=0.0
    )
    fatal_share = min(fatal / losses_per_h, 1.0)
    back_s = interval_s / 2 + costs.restart_s
    every = "each" if fatal_share >= 1 else f"{fatal_share:.0%} of them take all: each of those"
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


def is_pressed(*, left_s: float, work_s: float, change_s: float, changes: int) -> bool:
    """Whether a job must be on machines that stay: the time left is what its work takes there, with so many changes (NSDI'24,
    section 4: the safety net).
    """
    return left_s <= work_s + changes * change_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a job stands, in seconds.

    `work_s` is what its work takes on its full size on demand, `done_s` how much of that is done, `elapsed_s` since it began.
    `deadline_s`, from its beginning, must not be missed (infinite: there is none); `target_s` is when it should be done, not
    later than that: uniform progress is towards it. `change_s` is what a change of all machines costs: launch and restart.
    """

    work_s: float
    done_s: float
    elapsed_s: float
    deadline_s: float
    target_s: float
    change_s: float

    @property
    def pressed(self) -> bool:
        """Whether it must be on demand from now on: the time that is left is needed, with a change to there and one more."""
        return is_pressed(
            left_s=self.deadline_s - self.elapsed_s,
            work_s=self.work_s - self.done_s,
            change_s=self.change_s,
            changes=2,
        )

    @property
    def behind(self) -> bool:
        """Whether less is done than uniform progress towards the target would have done."""
        return self.done_s < self.work_s * self.elapsed_s / max(self.target_s, 1e-9)

    @property
    def ahead(self) -> bool:
        """Whether so much is done that it may stop paying for on-demand machines without being behind at once."""
        later_s = self.elapsed_s + 2 * self.change_s
        return self.done_s >= self.work_s * min(later_s / max(self.target_s, 1e-9), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How a job that mixes markets is sized, in machines: `full` is the size that its user would rent on demand, `most` what
    it may grow to while spot machines are there, `anchors` how many on demand it keeps in any case.
    """

    full: int
    most: int
    anchors: int


def sizing(speed: Sequence[float], *, full: int, spot_price: float) -> Sizing:
    """The sizing of a job whose speed on n machines is `speed[n - 1]`, where a spot machine costs `spot_price` of one on demand.

    It grows as far as the spot machines beyond the full size make as much progress for their dollars as the full size on
    demand makes for its own. It keeps an anchor where that costs at most `ANCHOR_SHARE` of the price on
    demand.
    """
    per_usd = speed[full - 1] / full
    least = per_usd * spot_price
    wider = range(full + 1, len(speed) + 1)
    most = max((n for n in wider if speed[n - 1] - speed[full - 1] >= least * (n - full)), default=full)
    anchors = int(full > 1 and (1 - spot_price) / full <= ANCHOR_SHARE)
    return Sizing(full=full, most=most, anchors=anchors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Machines that a job should hold now, by market, and why."""

    on_demand: int
    spot: int
    reason: str


def hold(pace: Pace, size: Sizing, *, spot_ready: int, spot_available: int, filled: bool) -> Holding:
    """How many machines of which market a job should hold now: the Uniform Progress rule, for a job that may have some of each.

    Args:
        pace: where it stands.
        size: how it is sized.
        spot_ready: spot machines that train now.
        spot_available: spot machines that can be had, with those that are held. What is not ready yet does not count
            against what is missing: machines on demand go when their successors train.
        filled: whether it holds on-demand machines in place of missing spot machines now.
    """
    if pace.done_s >= pace.work_s:
        return Holding(on_demand=0, spot=0, reason="done")
    if pace.pressed:
        left_s = max(pace.deadline_s - pace.elapsed_s, 0.0)
        return Holding(
            on_demand=size.full,
            spot=0,
            reason=f"on demand to the end: {left_s:.0f} s to the deadline, {pace.work_s - pace.done_s:.0f} s of work",
        )
    spot = min(spot_available, size.most - size.anchors)
    missing = size.full - size.anchors - min(spot_ready, spot)
    if missing <= 0:
        return Holding(on_demand=size.anchors, spot=spot, reason="spot machines are there")
    starting = spot >= size.full - size.anchors and not filled
    if starting:
        return Holding(on_demand=size.anchors, spot=spot, reason="spot machines are starting")
    if pace.behind or (filled and not pace.ahead):
        return Holding(
            on_demand=size.anchors + missing,
            spot=spot,
            reason=f"behind uniform progress: {missing} on demand in place of spot machines that are not there",
        )
    return Holding(
        on_demand=size.anchors, spot=spot, reason="ahead of uniform progress: waits for spot machines"
    )
