"""Which machines to rent and to give back: by what a dollar more buys of goodput.

A job's goodput has a price: what it costs where a dollar buys most of it, on any machine that is on offer or there. A
machine is worth the goodput that jobs gain by it, at this price. How far a user goes beyond it is the objective's: with
`cost` a machine is rented that is about as good a buy as the best, with `balanced` one that is half as good (there time
times cost is least), with `time` one that is a tenth as good. A waiting job gains from nothing.

One rule keeps machines from coming and going: a machine is rented where it is worth its price, and given back only when it
has been worth less than two thirds of it for a while on end. What was paid for anyway is not given back.

Every question of worth is answered by the production round: the same tables, policy and solver, on a cluster with
the machine and on one without.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.dollars import dollars
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.allocation.round import Round, build_round
from service.domain.allocation.steering import steered
from service.domain.arrays import FloatArray
from service.domain.cluster import Node, Snapshot
from service.domain.jobs import Job
from service.domain.policies.policy import Policy
from service.domain.rental.candidates import Candidate, candidates_of, made_up, made_up_node
from service.domain.rental.fleet import Cooling, Place
from service.domain.rental.machines import Machine, MachineReason, MachineState, billed_s
from service.domain.rental.offers import Offer
from service.domain.rental.wants import Fleet, Release, Rules, Want, Wants

GOOD_BUY = MappingProxyType({"cost": 0.9, "balanced": 0.5, "time": 0.1})
"""How much of what the first dollar buys the last one has to buy, by a job's objective."""
HYSTERESIS = 1.5
"""A machine is given back when it is worth less than its price divided by this."""
_MOST_COUNTS = 3
_MOST_SOLVES = 200
"""In one pass; what is not looked at waits for the next."""
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the round gives: goodput by job, of those that it decides about."""

    round: Round
    goodput: Mapping[str, float]


@dataclass(slots=True)
class _Scales:
    """Solves rounds on clusters that might be, and counts them."""

    policy: Policy
    solve: Solve
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars for a sample per second for an hour that each job's user would pay, at most."""
    solved: int = 0

    def outcome(self, snapshot: Snapshot) -> _Outcome:
        self.solved += 1
        round_ = build_round(snapshot)
        policy, _ = steered(self.policy, round_)
        chosen = policy.choose(round_.given, self.solve).chosen
        goodput = {
            job.id: 0.0 if column == NOTHING else float(round_.given.goodput[row, column])
            for row, (job, column) in enumerate(zip(round_.jobs, chosen, strict=True))
        }
        return _Outcome(round_, goodput)

    def gains(self, less: _Outcome, more: _Outcome) -> dict[str, float]:
        """Dollars per hour that each job's gain is worth."""
        return {
            job: self.prices.get(job, 0.0) * (goodput - less.goodput.get(job, 0.0))
            for job, goodput in more.goodput.items()
        }


def decide_wants(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer],
    *,
    cooling: Mapping[Place, Cooling],
    rules: Rules,
    policy: Policy,
    solve: Solve,
    low_since: Mapping[str, datetime],
) -> Wants:
    """The machines to rent now and those to give back, each with its reason. The same input has the same answer."""
    scales = _Scales(policy, solve)
    base = _with_expected(snapshot, fleet)
    candidates = candidates_of(offers)
    scales.prices = _prices(base, candidates)
    bounds = _Bounds(len(fleet.machines), fleet.usd_per_h(), _hourly_cap(base, rules), rules, cooling)
    rent, base, held_back = _rented(base, candidates, bounds, scales)
    release, low = _released(base, fleet, rules, scales, low_since)
    return Wants(rent=tuple(rent), release=tuple(release), low_since=low, held_back=held_back)


def _with_expected(snapshot: Snapshot, fleet: Fleet) -> Snapshot:
    """The cluster with the machines that are on their way."""
    coming = [
        made_up_node(f"{one.id}", one.slots, one.device_kind, one.market, one.usd_per_slot_h)
        for one in fleet.machines
        if one.state in {MachineState.WANTED, MachineState.LAUNCHING} and one.id not in fleet.nodes
    ]
    return _plus(snapshot, coming)


def _plus(snapshot: Snapshot, nodes: Sequence[Node]) -> Snapshot:
    return replace(
        snapshot, nodes={**snapshot.nodes, **{node.id: _as_known(snapshot, node) for node in nodes}}
    )


def _as_known(snapshot: Snapshot, coming: Node) -> Node:
    """A node that might be, as those of its kinds have turned out: without an engine if none of them has one."""
    alike = [
        node.containers
        for node in snapshot.nodes.values()
        if node.market is coming.market and set(node.slots.values()) & set(coming.slots.values())
    ]
    return replace(coming, containers=any(alike) or not alike)


def _prices(base: Snapshot, candidates: Sequence[Candidate]) -> dict[str, float]:
    """What a job's goodput may cost: where a dollar buys most of what it may have now, divided by how good a buy its
    objective asks for. Every offer counts, with as many machines as the smallest size takes.
    """
    smallest = max((min(job.sizes) for job in base.jobs.values()), default=1)
    nodes = [
        node
        for index, one in enumerate(candidates)
        for node in made_up(one, min(-(-smallest // one.offer.devices), 16), f"offer-{index}")
    ]
    round_ = build_round(_plus(base, nodes))
    usd, goodput = _in_whole_machines(round_, candidates), round_.given.goodput
    found = {}
    for row, job in enumerate(round_.jobs):
        useful = round_.given.allowed[row] & (goodput[row] > 0) & (usd > 0)
        if useful.any():
            best = float(np.max(goodput[row][useful] / usd[useful]))
            found[job.id] = 1.0 / (best * GOOD_BUY[job.spec.goal.objective])
    return found


def _in_whole_machines(round_: Round, candidates: Sequence[Candidate]) -> FloatArray:
    """(C,) dollars per hour of the machines that a column takes; where none are on offer, of its slots."""
    columns = round_.columns
    usd = np.zeros(len(columns.parts))
    for index, pool in enumerate(columns.pools):
        parts = columns.parts[:, index]
        machines = [
            np.ceil(parts / one.offer.devices) * one.usd_per_h
            for one in candidates
            if (one.offer.device_kind, one.market) == (pool.kind, pool.market)
        ]
        room = round_.rooms[pool.name]
        slots = np.where(parts > 0, parts * room.usd_per_slot_h, 0.0)
        usd += np.min(machines, axis=0) if machines else slots
    return usd


@dataclass(frozen=True, slots=True)
class _Buy:
    """Machines that might be rented together, and what comes of it."""

    candidate: Candidate
    nodes: Sequence[Node]
    usd_per_h: float
    gains: Mapping[str, float]
    outcome: _Outcome

    @property
    def worth(self) -> float:
        """Dollars per hour."""
        return sum(self.gains.values())

    @property
    def rank(self) -> tuple[float, float, str]:
        """The best buy has the highest."""
        return self.worth / max(self.usd_per_h, 1e-9), -self.usd_per_h, self.candidate.name


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What may be rented more, and why not more than that."""

    machines: int
    usd_per_h: float
    cap_usd_per_h: float
    rules: Rules
    cooling: Mapping[Place, Cooling]

    def bar(self, buy: _Buy) -> str:
        """Why it may not be rented now; empty where it may."""
        if self.machines + len(buy.nodes) > self.rules.max_machines:
            return f"{self.rules.max_machines} machines are the most at once"
        if self.usd_per_h + buy.usd_per_h > self.cap_usd_per_h + 1e-9:
            return f"machines may cost {dollars(self.cap_usd_per_h)}/h, and it would be over that"
        cool = self.cooling.get(buy.candidate.place)
        if cool is None:
            return ""
        return f"nothing is asked for there before {cool.until:%H:%M:%S} UTC: {cool.message}"

    def after(self, buy: _Buy) -> _Bounds:
        return replace(
            self, machines=self.machines + len(buy.nodes), usd_per_h=self.usd_per_h + buy.usd_per_h
        )


def _rented(
    base: Snapshot, candidates: Sequence[Candidate], bounds: _Bounds, scales: _Scales
) -> tuple[list[Want], Snapshot, str]:
    """Machine after machine, the best buy first, until none is worth its price or a bound is reached."""
    wants: list[Want] = []
    held_back = ""
    if not candidates or not base.jobs:
        return wants, base, held_back
    here = scales.outcome(base)
    while here.goodput and len(wants) < _MOST_STEPS:
        best = None
        for buy in _buys(base, here, candidates, len(wants), scales):
            bar = bounds.bar(buy)
            if bar:
                held_back = held_back or f"{buy.candidate.name} would be worth it, but {bar}"
            elif best is None or buy.rank > best.rank:
                best = buy
        if best is None:
            break
        one = Want(
            offer=best.candidate.offer,
            market=best.candidate.market,
            usd_per_h=best.candidate.usd_per_h,
            message=_why(best, here),
        )
        wants += [one] * len(best.nodes)
        base, here, bounds = _plus(base, best.nodes), best.outcome, bounds.after(best)
    return wants, base, held_back


def _buys(
    base: Snapshot, here: _Outcome, candidates: Sequence[Candidate], serial: int, scales: _Scales
) -> Iterator[_Buy]:
    """Everything that is worth its price."""
    for candidate in candidates:
        for count in _counts(here, candidate):
            if scales.solved >= _MOST_SOLVES:
                return
            nodes = made_up(candidate, count, f"want-{serial}-{candidate.name}")
            there = scales.outcome(_plus(base, nodes))
            price = candidate.usd_per_h * count
            buy = _Buy(candidate, nodes, price, scales.gains(here, there), there)
            if buy.worth > price:
                yield buy


def _hourly_cap(snapshot: Snapshot, rules: Rules) -> float:
    """What all machines together may cost an hour."""
    caps = [cap.usd_per_h for cap in snapshot.caps if cap.project is None]
    return min([*caps, math.inf if rules.max_usd_per_h is None else rules.max_usd_per_h])


def _counts(here: _Outcome, candidate: Candidate) -> list[int]:
    """How many machines at once might make a difference: one, and as many as some job's next size takes."""
    slots = candidate.offer.devices
    counts = {1}
    held = {job.id: here.round.holdings[job.id].size for job in here.round.jobs}
    for job in here.round.jobs:
        counts.add(-(-_next_step(job, held[job.id]) // slots))
    return sorted(count for count in counts if count > 0)[:_MOST_COUNTS]


def _next_step(job: Job, held: int) -> int:
    """Slots from what a job holds to the next size that it may have."""
    return min((size - held for size in job.sizes if size > held), default=1)


def _why(buy: _Buy, here: _Outcome) -> str:
    """Who gains by it, and what that is worth."""
    gains, there = buy.gains, buy.outcome
    names = {job.id: job.name for job in there.round.jobs}
    winners = sorted((job for job, gain in gains.items() if gain > 0), key=lambda job: (-gains[job], job))
    each = ", ".join(
        f"{names[job]} ({'starts' if not here.goodput.get(job) else _faster(here, there, job)})"
        for job in winners[:3]
    )
    more = f" and {len(winners) - 3} more" if len(winners) > 3 else ""
    count = len(buy.nodes)
    what = buy.candidate.name if count == 1 else f"{count} x {buy.candidate.name}"
    return f"{what}: worth {dollars(buy.worth)}/h for {dollars(buy.usd_per_h)}/h, by {each}{more}"


def _faster(here: _Outcome, there: _Outcome, job: str) -> str:
    return f"{there.goodput[job] / here.goodput[job] - 1:+.0%}"


def _released(
    base: Snapshot, fleet: Fleet, rules: Rules, scales: _Scales, low_since: Mapping[str, datetime]
) -> tuple[list[Release], dict[str, datetime]]:
    """The machines that have not been worth their price for long, the worst buy first."""
    low: dict[str, datetime] = {}
    releases: list[Release] = []
    if not fleet.machines:
        return releases, low
    here = scales.outcome(base)
    now = base.now
    held = {key.node_id for key in base.held}
    # Of equals an idle one: then nobody has to move.
    worst_first = sorted(
        fleet.machines, key=lambda one: (-one.usd_per_slot_h, fleet.nodes.get(one.id) in held, one.id)
    )
    for machine in worst_first:
        node_id = fleet.nodes.get(machine.id)
        node = base.nodes.get(node_id) if node_id is not None else None
        if machine.state is not MachineState.RUNNING or node is None or not _is_judged(node, held):
            continue
        if scales.solved >= _MOST_SOLVES or not _movable(base, node.id, here.round):
            continue
        without = _without(base, node)
        there = scales.outcome(without)
        worth = max(0.0, sum(scales.gains(there, here).values()))
        if worth >= machine.usd_per_h / HYSTERESIS and worth > 0:
            continue
        since = low[machine.id] = min(low_since.get(machine.id, now), now)
        if (now - since).total_seconds() < rules.idle_s or billed_s(machine, now) <= machine.min_billed_s:
            continue
        releases.append(
            _release(
                machine,
                worth,
                (now - since).total_seconds(),
                held=node.id in held,
            )
        )
        base, here = without, there
    return releases, low


def _is_judged(node: Node, held: Collection[str]) -> bool:
    """Whether it is asked what a machine is worth. One that takes no new jobs is paid for as well; one that jobs are
    leaving is asked once they have left.
    """
    return node.state is not NodeState.LOST and (node.keeps_jobs or node.id not in held)


def _movable(snapshot: Snapshot, node_id: str, round_: Round) -> bool:
    """Whether the round decides about every job that holds a slot there: others are on their way."""
    deciding = {job.id for job in round_.jobs}
    return all(job in deciding for key, job in snapshot.held.items() if key.node_id == node_id)


def _without(snapshot: Snapshot, node: Node) -> Snapshot:
    return _plus(snapshot, [replace(node, state=NodeState.DRAINING)])


def _release(machine: Machine, worth: float, low_s: float, *, held: bool) -> Release:
    what = "no job would miss it" if worth == 0 else f"jobs would lose {dollars(worth)}/h by it"
    return Release(
        machine_id=machine.id,
        reason=MachineReason.NOT_WORTH_IT if held else MachineReason.IDLE,
        message=f"{what}, for {low_s:.0f} s now, and it costs {dollars(machine.usd_per_h)}/h",
    )
