"""Decisions which machines to rent and to release, by the goodput that another dollar buys.

Each job's goodput has a price: its cost where a dollar buys most of it, on any machine that is on offer or
already rented. A machine is worth the goodput that jobs gain from it, at this price. The job's objective sets
how much worse than the best buy a machine may be:

- `cost`: about as good a buy as the best.
- `balanced`: half as good. There, time times cost is least.
- `time`: a tenth as good.

A waiting job starts from a goodput of 0.

A hysteresis prevents oscillation. A machine is rented if it is worth its price, and released only after it
has been worth less than two thirds of its price for some time without a break. It is kept for at least its
minimum billed time.

The production round answers every question of worth: the same tables, policy and solver, on a cluster with
the machine and on one without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.values.dollars import dollars
from headway.contract.values.listing import some_of
from service.domain.allocation.inputs.policy_state import advanced
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.cluster.snapshot import Node, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.framework.policy import Policy
from service.domain.rental.candidates import Candidate, candidates_of, made_up, made_up_node
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineReason, MachineState, billed_s
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, Release, RentalRules, RentalTarget, RentalTargets
from service.domain.shared.arrays import FloatArray

GOOD_BUY = MappingProxyType({"cost": 0.9, "balanced": 0.5, "time": 0.1})
"""Minimum marginal goodput per dollar, relative to the first dollar, by a job's objective."""
HYSTERESIS = 1.5
"""Hysteresis factor: a machine is released when it is worth less than its price divided by this factor."""
_MOST_COUNTS = 3
_MOST_SOLVES = 200
"""Largest number of rounds solved in one pass. The next pass examines the rest."""
_MOST_PURCHASES = 8


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of a round: goodput by job, for the jobs that the round decides about."""

    round: Round
    goodput: Mapping[str, float]


@dataclass(slots=True)
class _RoundSolver:
    """Solver of rounds on hypothetical clusters that counts its calls."""

    policy: Policy
    solve: Solve
    prices: Mapping[str, float] = field(default_factory=dict)
    """Largest price that each job's user would pay, in dollars per hour for a sample per second."""
    solved: int = 0

    def outcome(self, snapshot: Snapshot) -> _Outcome:
        self.solved += 1
        round_ = build_round(snapshot)
        policy, _ = advanced(self.policy, round_)
        chosen = policy.choose(round_.given, self.solve).chosen
        goodput = {
            job.id: 0.0 if column == NOTHING else float(round_.given.goodput[row, column])
            for row, (job, column) in enumerate(zip(round_.jobs, chosen, strict=True))
        }
        return _Outcome(round_, goodput)

    def gains(self, less: _Outcome, more: _Outcome) -> dict[str, float]:
        """Return the worth of each job's gain in dollars per hour."""
        return {
            job: self.prices.get(job, 0.0) * (goodput - less.goodput.get(job, 0.0))
            for job, goodput in more.goodput.items()
        }


def decide_rental_targets(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer],
    *,
    cooling: Mapping[RentalPlace, LaunchBackoff],
    rules: RentalRules,
    policy: Policy,
    solve: Solve,
    low_since: Mapping[str, datetime],
) -> RentalTargets:
    """Return the machines to rent and to release now, each with its reason. The result is deterministic."""
    round_solver = _RoundSolver(policy, solve)
    base = _with_expected(snapshot, fleet)
    candidates = candidates_of(offers)
    round_solver.prices = _prices(base, candidates)
    bounds = _Bounds(len(fleet.machines), fleet.usd_per_h(), _hourly_cap(base, rules), rules, cooling)
    rent, base, held_back = _rented(base, candidates, bounds, round_solver)
    release, low = _released(base, fleet, rules, round_solver, low_since)
    return RentalTargets(rent=tuple(rent), release=tuple(release), low_since=low, held_back=held_back)


def _with_expected(snapshot: Snapshot, fleet: Fleet) -> Snapshot:
    """Return the cluster including the machines that are being launched."""
    coming = [
        made_up_node(one.id, one.slots, one.device_kind, one.market, one.usd_per_slot_h)
        for one in fleet.machines
        if one.state in {MachineState.WANTED, MachineState.LAUNCHING} and one.id not in fleet.nodes
    ]
    return _plus(snapshot, coming)


def _plus(snapshot: Snapshot, nodes: Sequence[Node]) -> Snapshot:
    return replace(
        snapshot, nodes={**snapshot.nodes, **{node.id: _as_known(snapshot, node) for node in nodes}}
    )


def _as_known(snapshot: Snapshot, coming: Node) -> Node:
    """Return a hypothetical node that runs containers if a similar node does, or if there is no similar node."""
    alike = [
        node.containers
        for node in snapshot.nodes.values()
        if node.market is coming.market and set(node.slots.values()) & set(coming.slots.values())
    ]
    return replace(coming, containers=any(alike) or not alike)


def _prices(base: Snapshot, candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the highest price of each job's goodput, in dollars per hour for a sample per second.

    It is the price where a dollar buys most of the goodput available to the job, divided by the `GOOD_BUY` of
    its objective. Every offer counts, with as many machines as the smallest size of any job takes.
    """
    smallest = max((min(job.sizes) for job in base.jobs.values()), default=1)
    nodes = [
        node
        for index, one in enumerate(candidates)
        for node in made_up(one, min(-(-smallest // one.offer.devices), 16), f"offer-{index}")
    ]
    round_ = build_round(_plus(base, nodes))
    usd, goodput = _price_in_machines(round_, candidates), round_.given.goodput
    found = {}
    for row, job in enumerate(round_.jobs):
        useful = round_.given.allowed[row] & (goodput[row] > 0) & (usd > 0)
        if useful.any():
            best = float(np.max(goodput[row][useful] / usd[useful]))
            found[job.id] = 1.0 / (best * GOOD_BUY[job.spec.goal.objective])
    return found


def _price_in_machines(round_: Round, candidates: Sequence[Candidate]) -> FloatArray:
    """Return the dollars per hour (C,) of the machines that a column takes, or of its slots if no machine is on offer."""
    columns = round_.columns
    usd = np.zeros(len(columns.parts))
    for index, pool in enumerate(columns.pools):
        parts = columns.parts[:, index]
        machines = [
            np.ceil(parts / one.offer.devices) * one.usd_per_h
            for one in candidates
            if (one.offer.device_kind, one.market) == (pool.kind, pool.market)
        ]
        room = round_.scope.capacities[pool.name]
        slots = np.where(parts > 0, parts * room.usd_per_slot_h, 0.0)
        usd += np.min(machines, axis=0) if machines else slots
    return usd


@dataclass(frozen=True, slots=True)
class _Buy:
    """Machines that might be rented together, with the resulting gains."""

    candidate: Candidate
    nodes: Sequence[Node]
    usd_per_h: float
    gains: Mapping[str, float]
    outcome: _Outcome

    @property
    def worth(self) -> float:
        """Worth of the machines in dollars per hour."""
        return sum(self.gains.values())

    @property
    def rank(self) -> tuple[float, float, str]:
        """Sort key of a buy: the best buy has the highest."""
        return self.worth / max(self.usd_per_h, 1e-9), -self.usd_per_h, self.candidate.name


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Limits on renting more machines."""

    machines: int
    usd_per_h: float
    cap_usd_per_h: float
    rules: RentalRules
    cooling: Mapping[RentalPlace, LaunchBackoff]

    def obstacle(self, buy: _Buy) -> str:
        """Return the reason why the machines may not be rented now, empty if they may."""
        if self.machines + len(buy.nodes) > self.rules.max_machines:
            return f"the limit of {self.rules.max_machines} machines is reached"
        if self.usd_per_h + buy.usd_per_h > self.cap_usd_per_h + 1e-9:
            return f"it would exceed the limit of {dollars(self.cap_usd_per_h)}/h for all machines"
        cool = self.cooling.get(buy.candidate.place)
        if cool is None:
            return ""
        return f"launches there are suspended until {cool.until:%H:%M:%S} UTC: {cool.message}"

    def after(self, buy: _Buy) -> _Bounds:
        return replace(
            self, machines=self.machines + len(buy.nodes), usd_per_h=self.usd_per_h + buy.usd_per_h
        )


def _rented(
    base: Snapshot, candidates: Sequence[Candidate], bounds: _Bounds, round_solver: _RoundSolver
) -> tuple[list[RentalTarget], Snapshot, str]:
    """Rent one machine after another, the best buy first, until none is worth its price or a limit is reached."""
    wants: list[RentalTarget] = []
    held_back = ""
    if not candidates or not base.jobs:
        return wants, base, held_back
    here = round_solver.outcome(base)
    while here.goodput and len(wants) < _MOST_PURCHASES:
        best = None
        for buy in _buys(base, here, candidates, len(wants), round_solver):
            obstacle = bounds.obstacle(buy)
            if obstacle:
                held_back = held_back or f"{buy.candidate.name} would be worth its price, but {obstacle}"
            elif best is None or buy.rank > best.rank:
                best = buy
        if best is None:
            break
        one = RentalTarget(
            offer=best.candidate.offer,
            market=best.candidate.market,
            usd_per_h=best.candidate.usd_per_h,
            message=_why(best, here),
        )
        wants += [one] * len(best.nodes)
        base, here, bounds = _plus(base, best.nodes), best.outcome, bounds.after(best)
    return wants, base, held_back


def _buys(
    base: Snapshot, here: _Outcome, candidates: Sequence[Candidate], serial: int, round_solver: _RoundSolver
) -> Iterator[_Buy]:
    """Yield every set of machines that is worth its price."""
    for candidate in candidates:
        for count in _counts(here, candidate):
            if round_solver.solved >= _MOST_SOLVES:
                return
            nodes = made_up(candidate, count, f"want-{serial}-{candidate.name}")
            there = round_solver.outcome(_plus(base, nodes))
            price = candidate.usd_per_h * count
            buy = _Buy(candidate, nodes, price, round_solver.gains(here, there), there)
            if buy.worth > price:
                yield buy


def _hourly_cap(snapshot: Snapshot, rules: RentalRules) -> float:
    """Return the limit on the dollars per hour of all machines together."""
    caps = [cap.usd_per_h for cap in snapshot.caps if cap.project is None]
    return min([*caps, math.inf if rules.max_usd_per_h is None else rules.max_usd_per_h])


def _counts(here: _Outcome, candidate: Candidate) -> list[int]:
    """Return the numbers of machines worth trying at once: one, and as many as some job's next size takes."""
    slots = candidate.offer.devices
    scope = here.round.scope
    steps = {_next_step(job, scope.holdings[job.id].size) for job in scope.jobs}
    return sorted({1, *(-(-step // slots) for step in steps)})[:_MOST_COUNTS]


def _next_step(job: Job, held: int) -> int:
    """Return the slots between a job's present size and the next size that it may have."""
    return min((size - held for size in job.sizes if size > held), default=1)


def _why(buy: _Buy, here: _Outcome) -> str:
    """Return the jobs that gain from the machines, and the worth of their gain, as a message."""
    gains, there = buy.gains, buy.outcome
    names = {job.id: job.name for job in there.round.jobs}
    winners = sorted((job for job, gain in gains.items() if gain > 0), key=lambda job: (-gains[job], job))
    each = some_of(
        [
            f"{names[job]} ({_faster(here, there, job) if here.goodput.get(job) else 'starts'})"
            for job in winners
        ],
        3,
    )
    count = len(buy.nodes)
    what = buy.candidate.name if count == 1 else f"{count} x {buy.candidate.name}"
    return f"{what}: worth {dollars(buy.worth)}/h at a price of {dollars(buy.usd_per_h)}/h, for {each}"


def _faster(here: _Outcome, there: _Outcome, job: str) -> str:
    return f"{there.goodput[job] / here.goodput[job] - 1:+.0%}"


def _released(
    base: Snapshot,
    fleet: Fleet,
    rules: RentalRules,
    round_solver: _RoundSolver,
    low_since: Mapping[str, datetime],
) -> tuple[list[Release], dict[str, datetime]]:
    """Return the machines that have long been worth less than their price, the worst buy first."""
    low: dict[str, datetime] = {}
    releases: list[Release] = []
    if not fleet.machines:
        return releases, low
    here = round_solver.outcome(base)
    now = base.now
    held = {key.node_id for key in base.held}
    # Among equal machines, an idle one goes first, so that no job has to move.
    worst_first = sorted(
        fleet.machines, key=lambda one: (-one.usd_per_slot_h, fleet.nodes.get(one.id) in held, one.id)
    )
    for machine in worst_first:
        node = base.nodes.get(fleet.nodes.get(machine.id, ""))
        if machine.state is not MachineState.RUNNING or node is None or not _is_judged(node, held):
            continue
        if round_solver.solved >= _MOST_SOLVES or not _movable(base, node.id, here.round):
            continue
        without = _without(base, node)
        there = round_solver.outcome(without)
        worth = max(0.0, sum(round_solver.gains(there, here).values()))
        if worth > 0 and worth >= machine.usd_per_h / HYSTERESIS:
            continue
        since = low[machine.id] = min(low_since.get(machine.id, now), now)
        if (now - since).total_seconds() < rules.idle_s or billed_s(machine, now) <= machine.min_billed_s:
            continue
        releases.append(_release(machine, worth, (now - since).total_seconds(), held=node.id in held))
        base, here = without, there
    return releases, low


def _is_judged(node: Node, held: Collection[str]) -> bool:
    """Return whether to evaluate a machine's worth.

    A machine that takes no new jobs is evaluated, since it costs money too. A machine that jobs are leaving
    is evaluated once they have left.
    """
    return node.state is not NodeState.LOST and (node.keeps_jobs or node.id not in held)


def _movable(snapshot: Snapshot, node_id: str, round_: Round) -> bool:
    """Return whether the round decides about every job that holds a slot of the node. Other jobs are changing already."""
    deciding = {job.id for job in round_.jobs}
    return all(job in deciding for key, job in snapshot.held.items() if key.node_id == node_id)


def _without(snapshot: Snapshot, node: Node) -> Snapshot:
    return _plus(snapshot, [replace(node, state=NodeState.DRAINING)])


def _release(machine: Machine, worth: float, low_s: float, *, held: bool) -> Release:
    what = "no job has needed it" if worth == 0 else f"it has been worth only {dollars(worth)}/h to jobs"
    return Release(
        machine_id=machine.id,
        reason=MachineReason.NOT_WORTH_IT if held else MachineReason.IDLE,
        message=f"{what} for {low_s:.0f} s, and it costs {dollars(machine.usd_per_h)}/h",
    )
