"""Cost of spot interruptions for a plan of machines, depending on whether some of them stay. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from headway.contract.values.checkpoint_interval import checkpoint_interval_s
from service.domain.cluster.spot_rate import HOUR_S, checkpoint_losses_per_h, spot_share
from service.domain.rental.plans import MachinePlan

AWAY_S: Final = 1800.0
"""Seconds until a lost machine is replaced by another on the market, if several zones are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of changes to a job, in seconds of training: a checkpoint, a restart from one, a live resize.

    `live` is true if the job survives the loss of a member while another lives, except on `single_copy` numbers of slots: there
    each member has the only copy of its part of the model.
    """

    checkpoint_s: float = 5.0
    restart_s: float = 30.0
    resize_s: float = 1.0
    live: bool = True
    single_copy: frozenset[int] = frozenset()

    def survives(self, slots: int) -> bool:
        """Return True if a job on so many slots survives the loss of a member."""
        return self.live and slots not in self.single_copy


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
    live = costs.survives(plan.slots)
    if live and plan.anchored_slots:
        return Exposure(
            losses_per_h=losses_per_h,
            loss_s=costs.resize_s,
            interval_s=math.inf,
            share=1.0,
            present=present,
            reason=f"{_losses(losses_per_h)}, each a pause of {costs.resize_s:.3g} s: an anchor keeps a live replica",
        )
    # With several live members, a loss causes a rollback only if it takes all of them.
    fatal = checkpoint_losses_per_h([hazard] * machines, in_place=live, together=plan.together)
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
