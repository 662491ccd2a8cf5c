"""Recommendation of machines to rent for one job: time and cost to completion of every plan, ranked by goal. Pure.

`perf.forecast` predicts time and cost, with the losses that `spot.exposure` expects. A plan is paid for from
the launch of its machines, so its cost includes `START_S`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

import numpy as np

from headway.contract.values.dollars import dollars
from headway.contract.values.markets import Market
from service.domain.perf.forecast import Forecast, forecast
from service.domain.perf.searches.frontier import knee, pareto_front
from service.domain.rental.architectures import best
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachinePlan, PlanLimits, WorkerChoice
from service.domain.rental.speeds import ExpectedSpeed, Shape
from service.domain.rental.spot.losses import Costs, Exposure, exposure
from service.domain.shared.arrays import FloatArray

START_S: Final = 180.0
"""Seconds from the order of a machine to training on it: boot, join, start."""
_MOST_SIZES: Final = 10
"""Largest number of sizes tried for each type. From more sizes, a selection evenly spaced in the logarithm is tried."""

Goal = Literal["time", "cost", "balanced"]
ARCHITECTURES: Final = {
    "on-demand": (Architecture.ALL_ON_DEMAND,),
    "spot": (Architecture.ALL_SPOT,),
    "mixed": (
        Architecture.SINGLE_ANCHOR,
        Architecture.ANCHORED,
        Architecture.ALL_SPOT,
        Architecture.ALL_ON_DEMAND,
    ),
}
"""Architectures allowed by the market setting of a job file.

TIERING is not among them: nothing receives checkpoints into the memory of a remote node.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Requirements of a job, and the goal of its user.

    `sizes` are slots, ascending. `kinds` are the acceptable device kinds, empty for any. `samples` are the
    remaining work, with a `spread` (of the logarithm), in the unit of the speeds. `deadline_s` is in seconds
    from now.
    """

    sizes: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    samples: float
    spread: float = 0.0
    costs: Costs = field(default_factory=Costs)
    market: Literal["on-demand", "spot", "mixed"] = "mixed"
    objective: Goal = "balanced"
    max_cost_usd: float | None = None
    deadline_s: float | None = None


class PlanBadge(StrEnum):
    """Distinction of a plan among the feasible plans."""

    BEST = "best"
    FRONT = "front"
    KNEE = "knee"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Plan with its predicted time and cost.

    `speed` is the speed while all machines are present. `misses` names the user's limits that the plan
    breaks; it is empty for a feasible plan.
    """

    plan: MachinePlan
    speed: ExpectedSpeed
    exposure: Exposure
    time_s: float
    time_p90_s: float
    cost_usd: float
    cost_p90_usd: float
    misses: tuple[str, ...] = ()
    marks: tuple[PlanBadge, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nearest:
    """Smallest value of one limit (`max_cost_usd`, `deadline_s`, `max_usd_per_h`) that would make a plan feasible."""

    limit: Literal["max_cost_usd", "deadline_s", "max_usd_per_h"]
    value: float
    rated: Rated
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Result of a recommendation.

    `ranked` are the feasible plans, best first. If there are none, `nearest` holds limits that would be
    enough. `weighed` is the number of plans that were evaluated.
    """

    ranked: tuple[Rated, ...]
    nearest: tuple[Nearest, ...]
    weighed: int


def candidates(need: Need, offers: Sequence[Offer], limits: PlanLimits) -> list[MachinePlan]:
    """Return every plan worth evaluating: for each architecture, type and size the cheapest within the limits."""
    usable = _usable(need, offers)
    found: list[MachinePlan] = []
    for architecture in ARCHITECTURES[need.market]:
        for index, offer in enumerate(usable):
            for machines in _machine_counts(need, offer):
                if _too_dear(offer, machines, limits):
                    break
                plan = best(architecture, usable, [WorkerChoice(index, machines)], limits)
                if plan is not None:
                    found.append(plan)
    return [
        *{(plan.architecture, plan.groups): plan for plan in found if not _is_single_anchor(plan)}.values()
    ]


def shapes_of(plans: Sequence[MachinePlan]) -> list[Shape]:
    """Return the distinct shapes of the plans, whose speeds are needed to compare them."""
    return [*dict.fromkeys(shape_of(plan) for plan in plans)]


def shape_of(plan: MachinePlan) -> Shape:
    """Return the shape of a plan: the devices that train, and the number of their machines."""
    return Shape(plan.device_kind, plan.slots, plan.workers)


def recommend(
    need: Need,
    plans: Sequence[MachinePlan],
    speeds: dict[Shape, ExpectedSpeed],
    *,
    unlimited: Sequence[MachinePlan] = (),
) -> Recommendation:
    """Return the plans ranked by the user's goal.

    `unlimited` are plans without the limit on dollars per hour, used if no plan is feasible.
    """
    rated = rate(need, plans, speeds)
    feasible = [one for one in rated if not one.misses]
    if feasible:
        return Recommendation(tuple(_ranked(need, feasible)), (), len(rated))
    wider = rate(need, unlimited, speeds)
    return Recommendation((), tuple(_nearest(need, rated, wider)), len(rated))


def rate(need: Need, plans: Sequence[MachinePlan], speeds: dict[Shape, ExpectedSpeed]) -> list[Rated]:
    """Return each plan that can run with its predictions and the limits that it breaks, in the order of `plans`."""
    return [_judged(need, one) for one in _expected(need, plans, speeds)]


def _usable(need: Need, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers with acceptable devices, only the cheapest place of each type on each market."""
    cheapest: dict[tuple[str, str, Market], Offer] = {}
    for offer in offers:
        if need.kinds and offer.device_kind not in need.kinds:
            continue
        for market in Market:
            price, key = offer.usd_per_h(market), (offer.provider, offer.instance_type, market)
            before = cheapest.get(key)
            known = None if before is None else before.usd_per_h(market)
            if price is not None and (known is None or price < known):
                cheapest[key] = offer
    return [*dict.fromkeys(cheapest.values())]


def _too_dear(offer: Offer, machines: int, limits: PlanLimits) -> bool:
    """Return whether the machines exceed the limit even on the cheapest market. One machine is left out,
    since an anchor of another type may replace it.
    """
    prices = [price for market in Market if (price := offer.usd_per_h(market)) is not None]
    return limits.max_usd_per_h is not None and (machines - 1) * min(prices) > limits.max_usd_per_h


def _machine_counts(need: Need, offer: Offer) -> list[int]:
    counts = [size // offer.devices for size in need.sizes if size % offer.devices == 0]
    if len(counts) <= _MOST_SIZES:
        return counts
    wanted = np.geomspace(counts[0], counts[-1], _MOST_SIZES)
    return sorted({min(counts, key=lambda count: abs(math.log(count / one))) for one in wanted.tolist()})


def _is_single_anchor(plan: MachinePlan) -> bool:
    """Return whether an anchored plan is identical to one of the single-anchor architecture."""
    if plan.architecture is not Architecture.ANCHORED:
        return False
    workers, anchor = plan.groups
    return workers.offer == anchor.offer and anchor.machines == 1


def _expected(
    need: Need, plans: Sequence[MachinePlan], speeds: dict[Shape, ExpectedSpeed]
) -> Iterator[Rated]:
    runs = [plan for plan in plans if speeds[shape_of(plan)].goodput > 0]
    if not runs:
        return
    speed = [speeds[shape_of(plan)] for plan in runs]
    exposed = [exposure(plan, need.costs) for plan in runs]
    kept = np.array([one.share * _present(plan, one) for plan, one in zip(runs, exposed, strict=True)])
    expected: Forecast = forecast(
        goodput=np.array([one.goodput for one in speed]) * kept,
        low=np.array([one.low for one in speed]) * kept,
        remaining=np.array(need.samples),
        remaining_spread=np.array(need.spread),
        usd_per_h=np.array([plan.usd_per_h for plan in runs]),
        pause_s=START_S,
        losses_per_h=np.array([one.losses_per_h for one in exposed]),
        loss_s=np.array([one.loss_s for one in exposed]),
    )
    for index, plan in enumerate(runs):
        yield Rated(
            plan=plan,
            speed=speed[index],
            exposure=exposed[index],
            time_s=_at(expected.time_p50_s, index),
            time_p90_s=_at(expected.time_p90_s, index),
            cost_usd=_at(expected.cost_p50_usd, index),
            cost_p90_usd=_at(expected.cost_p90_usd, index),
        )


def _present(plan: MachinePlan, exposed: Exposure) -> float:
    """Return the average share of the full speed: while spot machines are away, the remaining machines train on.

    The speed is taken in proportion to the devices, which underestimates a smaller size.
    """
    stays = plan.anchored_slots / plan.slots
    return exposed.present + (1 - exposed.present) * stays


def _at(values: FloatArray, index: int) -> float:
    return float(np.broadcast_to(values, values.shape or (index + 1,))[index])


def _judged(need: Need, rated: Rated) -> Rated:
    misses, reasons = [], [_mix(rated.plan), rated.exposure.reason]
    if need.deadline_s is not None and not rated.time_s <= need.deadline_s:
        misses.append("deadline")
        reasons.append(f"ends {rated.time_s - need.deadline_s:,.0f} s after the deadline")
    elif need.deadline_s is not None and rated.time_p90_s > need.deadline_s:
        reasons.append(
            "misses the deadline with a probability of 10 % or more, unless it moves to on-demand machines in time"
        )
    if need.max_cost_usd is not None and not rated.cost_usd <= need.max_cost_usd:
        misses.append("max_cost_usd")
        reasons.append(f"costs {dollars(rated.cost_usd - need.max_cost_usd)} more than allowed")
    elif need.max_cost_usd is not None and rated.cost_p90_usd > need.max_cost_usd:
        reasons.append("costs more than allowed with a probability of 10 % or more")
    return replace(rated, misses=tuple(misses), reasons=tuple(reasons))


def _mix(plan: MachinePlan) -> str:
    """Return the machines by market, and the saving over the same machines on demand."""
    full = sum(
        one.machines * (one.offer.on_demand_usd_per_h or one.offer.usd_per_h(one.market) or 0.0)
        for one in plan.training
    )
    total = sum(one.machines for one in plan.groups)
    if plan.spot_machines == 0:
        return f"{total} on demand"
    saving = f": {1 - plan.usd_per_h / full:.0%} off the on-demand price" if full > 0 else ""
    return f"{plan.spot_machines} of {total} on spot{saving}"


def _ranked(need: Need, feasible: Sequence[Rated]) -> list[Rated]:
    time = np.array([one.time_s for one in feasible])
    cost = np.array([one.cost_usd for one in feasible])
    marks: dict[int, list[PlanBadge]] = {}
    front = [int(one) for one in pareto_front(time, cost)]
    for one in front:
        marks.setdefault(one, []).append(PlanBadge.FRONT)
    bend = knee(time, cost)
    fastest, cheapest = int(np.lexsort((cost, time))[0]), int(np.lexsort((time, cost))[0])
    for index, mark in ((bend, PlanBadge.KNEE), (fastest, PlanBadge.FASTEST), (cheapest, PlanBadge.CHEAPEST)):
        if index is not None:
            marks.setdefault(index, []).append(mark)
    match need.objective:
        case "time":
            order = np.lexsort((cost, time))
        case "cost":
            order = np.lexsort((time, cost))
        case "balanced":
            # After the knee, plans are ranked by time times cost: one per cent of either counts the same.
            order = np.argsort(
                np.log(np.maximum(time, 1e-9)) + np.log(np.maximum(cost, 1e-12)), kind="stable"
            )
            order = np.array([bend, *order[order != bend]]) if bend is not None else order
    marks.setdefault(int(order[0]), []).insert(0, PlanBadge.BEST)
    return [replace(feasible[int(at)], marks=tuple(marks.get(int(at), ()))) for at in order]


def _nearest(need: Need, rated: Sequence[Rated], wider: Sequence[Rated]) -> Iterator[Nearest]:
    """Yield, for each limit alone, its smallest value that makes some plan feasible."""
    in_time = [one for one in rated if "deadline" not in one.misses]
    if in_time and need.max_cost_usd is not None:
        one = min(in_time, key=lambda each: (each.cost_usd, each.time_s))
        yield Nearest("max_cost_usd", one.cost_usd, one, f"{dollars(one.cost_usd)} would be enough")
    affordable = [one for one in rated if "max_cost_usd" not in one.misses]
    if affordable and need.deadline_s is not None:
        one = min(affordable, key=lambda each: (each.time_s, each.cost_usd))
        yield Nearest(
            "deadline_s", one.time_s, one, f"a deadline {one.time_s:,.0f} s from now would be enough"
        )
    within = [one for one in wider if not one.misses]
    if within:
        one = min(within, key=lambda each: (each.plan.usd_per_h, each.time_s))
        yield Nearest(
            "max_usd_per_h", one.plan.usd_per_h, one, f"${one.plan.usd_per_h:,.4g} an hour would be enough"
        )
    if in_time or affordable or within:
        return
    # No single limit is enough. If the limit on dollars per hour leaves no plan, it is among the broken
    # limits.
    known, too = (rated, "") if rated else (wider, " and the limit on dollars per hour")
    if known:
        one = min(known, key=lambda each: (each.time_s, each.cost_usd))
        yield Nearest("deadline_s", one.time_s, one, f"the fastest plan, which also breaks other limits{too}")
        one = min(known, key=lambda each: (each.cost_usd, each.time_s))
        yield Nearest(
            "max_cost_usd", one.cost_usd, one, f"the cheapest plan, which also breaks other limits{too}"
        )
