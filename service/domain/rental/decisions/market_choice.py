"""Choice of the machines that jobs with `market: mixed` hold on each market, by Uniform Progress. Pure.

The rule covers a job if it knows the job's speed and remaining work, and if the job changes its size in place.
All other jobs follow the rule of `autoscale`. A job with the objective `time` does too: it would rather pay than
wait for spot machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headway.contract.values.markets import Market, pool_name
from headway.contract.views.jobs import JobState
from service.domain.allocation.inputs.round import requested_slots
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.snapshot import Snapshot, Tenant
from service.domain.cluster.spot_rate import HOUR_S
from service.domain.contention.costs import change_s
from service.domain.jobs.job import Job, class_of
from service.domain.perf.forecast import remaining_of
from service.domain.rental.candidates import Candidate, priced
from service.domain.rental.decisions.recommend import START_S
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalRules
from service.domain.rental.room import RentalRoom, room_of
from service.domain.rental.speeds import Shape, speeds_at
from service.domain.rental.spot.stock import Stock, stock_of
from service.domain.rental.spot.uniform_progress import (
    JobPace,
    Sizing,
    SpotHolding,
    SpotMarket,
    hold,
    pace_of,
    sizing,
)

MOST_MACHINES: Final = 64
"""Largest number of machines that the rule rents for one job."""
_COVERED: Final = frozenset(
    {JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.RESIZING, JobState.RECOVERING}
)


@dataclass(frozen=True, slots=True)
class MachineType:
    """Instance type that is sold on both markets. The places of each market are in the order of preference."""

    provider: str
    name: str
    kind: str
    devices: int
    spot: tuple[Candidate, ...]
    on_demand: tuple[Candidate, ...]

    @property
    def spot_price(self) -> float:
        """Price of a spot machine, relative to an on-demand machine."""
        return self.spot[0].usd_per_h / max(self.on_demand[0].usd_per_h, 1e-9)


@dataclass(frozen=True, slots=True)
class _Prospect:
    """Sizes, pace and price of a job on one type of machine. `usd_per_work` ranks the types."""

    machine_type: MachineType
    size: Sizing
    pace: JobPace
    usd_per_work: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotChoice:
    """Machines that a job should hold now.

    Attributes:
        job: The job.
        holding: Machines by market, and the reason.
        kept: Machines of the job that are not released.
        rent: Machines to rent, those on demand first.
        limit: Limit on the job's slots by pool.
        held_back: Reason why fewer machines are rented than the job should hold, else empty.
    """

    job: Job
    holding: SpotHolding
    kept: frozenset[str]
    rent: tuple[Candidate, ...]
    limit: MarketLimit
    held_back: str


def spot_choices(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer],
    *,
    cooling: Mapping[RentalPlace, LaunchBackoff],
    rules: RentalRules,
    boot_s: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> tuple[SpotChoice, ...]:
    """Return the choices for all jobs that the rule covers, pressed jobs first, then in the order of submission.

    `boot_s` are seconds until a machine takes jobs, by provider and instance type.
    """
    types = machine_types(offers)
    stock = stock_of(snapshot, fleet)
    prospects = [
        (job, prospect)
        for job in snapshot.jobs.values()
        if _is_covered(job) and (prospect := _prospect(snapshot, job, types, stock, boot_s)) is not None
    ]
    prospects.sort(key=lambda one: (not one[1].pace.pressed, one[0].submitted_at, one[0].id))
    room = room_of(snapshot.caps, fleet, rules)
    found = []
    for job, prospect in prospects:
        choice = _choice(job, prospect, stock, room, cooling)
        for one in choice.rent:
            room = room.after(one)
        found.append(choice)
    return tuple(found)


def machine_types(offers: Sequence[Offer]) -> list[MachineType]:
    """Return the types that are sold on both markets, in the order of their names.

    The best place on spot has the lowest price with the time that interruptions waste there: each interruption
    costs the start of another machine.
    """
    places: dict[tuple[str, str, str, int], dict[Market, list[Candidate]]] = {}
    for one in priced(offers):
        offer = one.offer
        key = (offer.provider, offer.instance_type, offer.device_kind, offer.devices)
        places.setdefault(key, {}).setdefault(one.market, []).append(one)
    return [
        MachineType(
            *key,
            spot=tuple(sorted(by_market[Market.SPOT], key=_spot_rank)),
            on_demand=tuple(sorted(by_market[Market.ON_DEMAND], key=lambda one: (one.usd_per_h, one.name))),
        )
        for key, by_market in sorted(places.items())
        if len(by_market) == len(Market)
    ]


def _spot_rank(one: Candidate) -> tuple[float, str]:
    wasted = max(one.offer.hazard_per_h, 0.0) * START_S / HOUR_S
    return one.usd_per_h * (1 + wasted), one.name


def _is_covered(job: Job) -> bool:
    """Return True if the rule may choose the machines of a job, as far as its spec and state show."""
    spec = job.spec
    return (
        spec.market == "mixed"
        and spec.goal.objective != "time"
        and spec.goal.search in {None, "none"}
        and job.follows_orders
        and job.pinned_size is None
        and not job.pause_requested
        and job.state in _COVERED
        and (job.live or job.state is not JobState.RUNNING)
        and len(job.sizes) > 1
    )


def _prospect(
    snapshot: Snapshot,
    job: Job,
    types: Sequence[MachineType],
    stock: Stock,
    boot_s: Mapping[tuple[str, str], float],
) -> _Prospect | None:
    """Return the job's prospect on the type that it has, otherwise on the cheapest one; None without any."""
    if stock.is_leased_for(job.id):
        return None
    devices = job.spec.resources.devices
    usable = [one for one in types if not devices or one.kind in devices]
    present = stock.type_of(job.id)
    if present is not None:
        usable = [one for one in usable if (one.provider, one.name) == present]
    found = [
        one
        for each in usable
        if (one := _on_type(snapshot, job, each, stock, boot_s.get((each.provider, each.name), START_S)))
        is not None
    ]
    return min(found, key=lambda one: one.usd_per_work, default=None)


def _on_type(
    snapshot: Snapshot, job: Job, machine_type: MachineType, stock: Stock, boot_s: float
) -> _Prospect | None:
    """Return the prospect of a job on machines of a type; None if the rule cannot cover it there."""
    # The measurements of its class include its own.
    of_class = snapshot.class_measurements.get(class_of(job.spec), ())
    measured = of_class or snapshot.measurements.get(job.id, ())
    samples = float(remaining_of([job], snapshot.ended_samples).samples[0])
    if not any(one.believable for one in measured) or not samples > 0:
        return None
    base = stock.own_slots(job.id, machine_type.kind)
    sizes = _allowed(job, snapshot)
    if not sizes or requested_slots(job) <= base:
        return None
    wanted = min(requested_slots(job), max(sizes))
    full = -(-(wanted - base) // machine_type.devices)
    most = min(max(full, (max(sizes) - base) // machine_type.devices), MOST_MACHINES)
    if not 0 < full <= most:
        return None
    shapes = [_shape(machine_type, base, count, sizes) for count in range(1, most + 1)]
    speeds = speeds_at(job, measured, [one for one in shapes if one is not None])
    goodput = [0.0 if one is None else speeds[one].goodput for one in shapes]
    at_full = shapes[full - 1]
    if at_full is None or not speeds[at_full].low > 0:
        return None
    done = float(max(job.progress.work_done, 0))
    pace = pace_of(
        work_s=(done + samples) / speeds[at_full].goodput,
        safe_s=(done + samples) / speeds[at_full].low,
        done=done / (done + samples),
        elapsed_s=(snapshot.now - job.submitted_at).total_seconds(),
        deadline_s=job.deadline_left_s(snapshot.now) + (snapshot.now - job.submitted_at).total_seconds(),
        change_s=boot_s + change_s(job),
    )
    full_usd_per_h = full * machine_type.on_demand[0].usd_per_h
    if not _is_affordable(snapshot, job, full_usd_per_h, pace):
        return None
    return _Prospect(
        machine_type,
        sizing(goodput, full=full, spot_price=machine_type.spot_price),
        pace,
        full * machine_type.spot[0].usd_per_h / speeds[at_full].goodput,
    )


def _allowed(job: Job, snapshot: Snapshot) -> tuple[int, ...]:
    """Return the sizes that the job may have within the quota of its project."""
    most = snapshot.projects.get(job.spec.project, Tenant()).quota.max_slots
    return tuple(size for size in job.sizes if most is None or size <= most)


def _shape(machine_type: MachineType, base: int, machines: int, sizes: Sequence[int]) -> Shape | None:
    """Return the shape of the largest size that fits on so many machines, beside `base` slots; None for none."""
    fitting = [size for size in sizes if size <= base + machines * machine_type.devices]
    return Shape(machine_type.kind, max(fitting), machines) if fitting else None


def _is_affordable(snapshot: Snapshot, job: Job, usd_per_h: float, pace: JobPace) -> bool:
    """Return True if the job may pay for its full size on demand until its end: the rule may have to rent it."""
    caps = [one.usd_per_h for one in snapshot.caps if one.project == job.spec.project]
    limit = snapshot.limits.get(job.id)
    left_usd = math.inf if limit is None else limit.left_usd
    hours = max(pace.work_s - pace.done_s, 0.0) / HOUR_S
    return usd_per_h <= min(caps, default=math.inf) and usd_per_h * hours <= left_usd


def _choice(
    job: Job,
    prospect: _Prospect,
    stock: Stock,
    room: RentalRoom,
    cooling: Mapping[RentalPlace, LaunchBackoff],
) -> SpotChoice:
    machine_type, size = prospect.machine_type, prospect.size
    own = stock.take(job.id, machine_type.provider, machine_type.name)
    places = {
        Market.ON_DEMAND: [one for one in machine_type.on_demand if one.place not in cooling],
        Market.SPOT: [one for one in machine_type.spot if one.place not in cooling],
    }
    more = room.count(places[Market.SPOT][0]) if places[Market.SPOT] else 0
    holding = hold(
        prospect.pace,
        size,
        SpotMarket(
            spot_ready=own.ready(Market.SPOT),
            spot_available=len(own.spot) + more,
            on_demand_ready=own.ready(Market.ON_DEMAND),
            filled=len(own.on_demand) > size.anchors,
        ),
    )
    stock.release(own.on_demand[holding.on_demand :] + own.spot[holding.spot :])
    missing = {
        Market.ON_DEMAND: holding.on_demand - len(own.on_demand),
        Market.SPOT: holding.spot - len(own.spot),
    }
    wanted = [one for market in Market for one in places[market][:1] * max(missing[market], 0)]
    rent, held_back = _within(room, wanted)
    return SpotChoice(
        job=job,
        holding=holding,
        kept=frozenset((*own.on_demand[: holding.on_demand], *own.spot[: holding.spot])),
        rent=rent,
        limit=_limit(holding, machine_type, stock),
        held_back=held_back,
    )


def _within(room: RentalRoom, wanted: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], str]:
    """Return the machines that the room has, and the limit that forbids the others."""
    found: list[Candidate] = []
    held_back = ""
    for one in wanted:
        obstacle = room.obstacle(one)
        if obstacle:
            held_back = f"{one.name} is needed, but {obstacle}"
        else:
            found.append(one)
            room = room.after(one)
    return tuple(found), held_back


def _limit(holding: SpotHolding, machine_type: MachineType, stock: Stock) -> MarketLimit:
    slots = dict(stock.own_slots_by_pool)
    for market, count in ((Market.ON_DEMAND, holding.on_demand), (Market.SPOT, holding.spot)):
        pool = pool_name(machine_type.kind, market)
        slots[pool] = slots.get(pool, 0) + count * machine_type.devices
    return MarketLimit(
        slots=slots,
        on_demand=holding.on_demand,
        spot=holding.spot,
        phase=holding.phase.value,
        reason=holding.reason,
    )
