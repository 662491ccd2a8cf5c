"""Search for the best plan of an architecture: the types, numbers, markets and roles of its machines. Pure.

A row is a type of worker and a number of machines that train. Where the architecture has a second kind of
machine, the search also chooses one type of those and their number. The value of a row is a number in a
table, so it may be any function of the row.

    maximise   value of the row, then the fewest dollars per hour
    subject to dollars per hour           <= max_usd_per_h
               vCPUs of family on market  <= quota
    TIERING    n workers < N_sat(slower network of the two) * m,   m * memory >= checkpoint * buffer     (DeepVM 4.b)
    ANCHORED   devices of x spot workers + devices of m anchors = devices of the row,   x >= 1, m >= 1

DeepVM solves this as an integer program. The search is exact: for a row and a second type, the price is
linear in the number of machines of that type, so it tries the numbers from the cheapest on.

In DeepVM each remote node must hold the whole buffered checkpoint. Here, the remote nodes hold it together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from headway.contract.values.markets import Market
from service.domain.rental.offers import Offer
from service.domain.rental.plans import (
    Architecture,
    MachineGroup,
    MachinePlan,
    PlanLimits,
    Role,
    WorkerChoice,
    family,
)

_SATURATION: Final = (
    (0.3, 2),
    (1.7, 12),
    (5.0, 16),
    (10.0, 20),
    (12.5, 24),
    (15.0, 24),
    (25.0, 28),
    (30.0, 32),
)
"""Bandwidth of the slower side in Gbit/s, with the number of workers whose checkpoints saturate one remote node there.

DeepVM measured these numbers.
"""
_MICRO: Final = 1_000_000


def saturation(gbps: float) -> int:
    """Return the number of workers that saturate a remote node. Fewer than that must send to it."""
    return max((nodes for least, nodes in _SATURATION if gbps >= least), default=1)


def best(
    architecture: Architecture,
    offers: Sequence[Offer],
    rows: Sequence[WorkerChoice],
    limits: PlanLimits,
    *,
    exclude: Collection[MachinePlan] = (),
) -> MachinePlan | None:
    """Return the plan of highest value within the limits, the cheapest of several, or None if none is within them.

    `exclude` are plans that were found before. No other plan with their row and types is returned.
    """
    known = {_choice(plan) for plan in exclude}
    found = [
        (row.value, plan)
        for row in rows
        for plan in _plans(architecture, offers, offers[row.offer], row.machines, limits)
        if _choice(plan) not in known
    ]
    if not found:
        return None
    return max(found, key=lambda pair: (pair[0], -_usd_micro(pair[1])))[1]


def within(plan: MachinePlan, limits: PlanLimits) -> bool:
    """Return whether a plan keeps to the limits on dollars per hour and vCPUs."""
    vcpus: dict[str, int] = {}
    for one in plan.groups:
        key = f"{family(one.offer.instance_type)}/{one.market}"
        vcpus[key] = vcpus.get(key, 0) + one.machines * one.offer.vcpus
    cheap = limits.max_usd_per_h is None or _usd_micro(plan) <= round(limits.max_usd_per_h * _MICRO)
    return cheap and all(used <= limits.vcpus.get(key, used) for key, used in vcpus.items())


def _usd_micro(plan: MachinePlan) -> int:
    """Return the price of a plan in millionths of a dollar per hour: whole numbers compare without rounding errors."""
    return sum(one.machines * round((one.offer.usd_per_h(one.market) or 0.0) * _MICRO) for one in plan.groups)


def _choice(plan: MachinePlan) -> tuple[Architecture, int, Offer, Offer]:
    """Return the row and the types of a plan."""
    return plan.architecture, plan.slots, plan.groups[0].offer, plan.groups[-1].offer


def _plans(
    architecture: Architecture, offers: Sequence[Offer], worker: Offer, machines: int, limits: PlanLimits
) -> Iterator[MachinePlan]:
    """Yield the plans of a row within the limits: the cheapest one for each second type of machine."""
    if not _sold(architecture, worker, machines, limits):
        return
    on_spot = MachineGroup(Role.WORKER, worker, Market.SPOT, machines)
    options: list[Iterator[tuple[MachineGroup, ...]]] = []
    match architecture:
        case Architecture.ALL_SPOT:
            options = [iter([(on_spot,)])]
        case Architecture.ALL_ON_DEMAND:
            options = [iter([(MachineGroup(Role.WORKER, worker, Market.ON_DEMAND, machines),)])]
        case Architecture.SINGLE_ANCHOR:
            others = MachineGroup(Role.WORKER, worker, Market.SPOT, machines - 1)
            options = [iter([(others, MachineGroup(Role.ANCHOR, worker, Market.ON_DEMAND, 1))])]
        case Architecture.TIERING:
            nodes = [one for one in offers if _keeps_checkpoints(worker, one)]
            options = [iter([(on_spot, _remote_nodes(worker, one, machines, limits))]) for one in nodes]
        case Architecture.ANCHORED:
            anchors = [one for one in offers if _may_anchor(worker, one, limits)]
            options = [_anchored(worker, one, machines) for one in anchors]
    for option in options:
        plans = (MachinePlan(architecture, groups) for groups in option)
        cheapest = next((plan for plan in plans if within(plan, limits)), None)
        if cheapest is not None:
            yield cheapest


def _sold(architecture: Architecture, offer: Offer, machines: int, limits: PlanLimits) -> bool:
    """Return whether the workers of a row are sold on the markets of the architecture and fit their share in memory."""
    markets = {
        Architecture.ALL_ON_DEMAND: (Market.ON_DEMAND,),
        Architecture.SINGLE_ANCHOR: (Market.ON_DEMAND, Market.SPOT),
    }.get(architecture, (Market.SPOT,))
    least = 2 if architecture is Architecture.SINGLE_ANCHOR else 1
    fits = offer.device_memory_bytes >= limits.device_bytes
    return fits and machines >= least and all(offer.usd_per_h(one) is not None for one in markets)


def _beside(worker: Offer, other: Offer) -> bool:
    """Return whether machines of the other type are sold on demand in the place of the workers."""
    same_place = (worker.provider, worker.region) == (other.provider, other.region)
    return same_place and other.on_demand_usd_per_h is not None


def _keeps_checkpoints(worker: Offer, other: Offer) -> bool:
    return _beside(worker, other) and other.device_kind == "cpu" and other.memory_bytes > 0


def _remote_nodes(worker: Offer, other: Offer, machines: int, limits: PlanLimits) -> MachineGroup:
    """Return the fewest remote nodes that the workers do not saturate and that hold the buffered checkpoint."""
    unsaturated = machines // saturation(min(worker.network_gbps, other.network_gbps)) + 1
    holding = math.ceil(limits.checkpoint_bytes * limits.buffer / other.memory_bytes)
    return MachineGroup(Role.REMOTE, other, Market.ON_DEMAND, max(unsaturated, holding))


def _may_anchor(worker: Offer, other: Offer, limits: PlanLimits) -> bool:
    fits = other.device_memory_bytes >= limits.device_bytes
    return _beside(worker, other) and fits and other.device_kind == worker.device_kind


def _anchored(worker: Offer, anchor: Offer, machines: int) -> Iterator[tuple[MachineGroup, ...]]:
    """Yield workers on spot with anchors that have the devices of the row together, from the cheapest on."""
    step = worker.devices // math.gcd(worker.devices, anchor.devices)
    counts = range(step, (machines - 1) * worker.devices // anchor.devices + 1, step)
    spot, on_demand = worker.spot_usd_per_h or 0.0, anchor.on_demand_usd_per_h or 0.0
    dearer = on_demand / anchor.devices >= spot / worker.devices
    for count in counts if dearer else reversed(counts):
        workers = machines - count * anchor.devices // worker.devices
        yield (
            MachineGroup(Role.WORKER, worker, Market.SPOT, workers),
            MachineGroup(Role.ANCHOR, anchor, Market.ON_DEMAND, count),
        )
