"""Decisions which machines to rent and to release, by what jobs gain from them.

Each job's goodput has a price (`worth/prices.py`). A machine is worth the goodput that jobs gain from it, at
this price. Under a long-run budget this is the delay that it spares, at the price of delay; machines are then
rented while that exceeds their dollars, and the set with the largest excess comes first.

Otherwise the price follows from the best buy among all machines on offer or already rented, and the job's
objective sets how much worse a machine may be:

- `cost`: about as good a buy as the best.
- `balanced`: half as good. There, time times cost is least.
- `time`: a tenth as good.

A waiting job starts from a goodput of 0.

A hysteresis prevents oscillation. A machine is rented if it is worth its price, and released only after it
has been worth clearly less for some time without a break (`HYSTERESIS`). It is kept for at least its minimum
billed time.

The production round answers every question of worth: the same tables, policy and solver, on a cluster with
the machine and on one without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.values.dollars import dollars
from headway.contract.values.listing import some_of
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.cluster.snapshot import Node
from service.domain.rental.candidates import Candidate, candidates_of, made_up, made_up_node
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineReason, MachineState, billed_s
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import (
    Fleet,
    Release,
    RentalRules,
    RentalTarget,
    RentalTargets,
    RentalTerms,
)
from service.domain.rental.room import RentalRoom, room_within
from service.domain.rental.worth.clusters import RentalCluster, RentalRound
from service.domain.rental.worth.prices import HYSTERESIS, Prices, Startup, prices_of

_MOST_COUNTS = 3
_MOST_SOLVES = 200
"""Largest number of rounds solved in one pass. The next pass examines the rest."""
_MOST_PURCHASES = 8


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of a round by job: slots, goodput, seconds left, and the price of more goodput."""

    round: RentalRound
    slots: Mapping[str, int]
    goodput: Mapping[str, float]
    left_s: Mapping[str, float]
    usd: Mapping[str, float]


@dataclass(slots=True)
class _RoundSolver:
    """Solver of rounds on hypothetical clusters that counts its calls."""

    prices: Prices
    solve: Solve
    settled: frozenset[str]
    solved: int = 0

    def outcome(self, cluster: RentalCluster) -> _Outcome:
        self.solved += 1
        round_ = cluster.round(self.prices.policy)
        chosen = round_.policy.choose(round_.given, self.solve).chosen
        slots, goodput, left_s = {}, {}, {}
        for row, (job, column) in enumerate(zip(round_.jobs, chosen.tolist(), strict=True)):
            rate = 0.0 if column == NOTHING else float(round_.given.goodput[row, column])
            remaining = float(round_.given.remaining[row])
            slots[job.id] = 0 if column == NOTHING else int(round_.given.configurations.slots[column])
            goodput[job.id] = rate
            left_s[job.id] = remaining / rate if rate > 0 and remaining >= 0 else self.prices.horizon_s
        usd = {**self.prices.usd, **self.prices.running_usd(round_, chosen)}
        usd = {job: price for job, price in usd.items() if job not in self.settled}
        return _Outcome(round_, slots, goodput, left_s, usd)

    def has_time(self) -> bool:
        return self.solved < _MOST_SOLVES


def _gains(less: _Outcome, more: _Outcome) -> dict[str, float]:
    """Return the worth of each job's gain in dollars per hour."""
    return {
        job: less.usd.get(job, 0.0) * (goodput - less.goodput.get(job, 0.0))
        for job, goodput in more.goodput.items()
    }


def decide_rental_targets(
    cluster: RentalCluster, fleet: Fleet, offers: Sequence[Offer], terms: RentalTerms
) -> RentalTargets:
    """Return the machines to rent and to release now, each with its reason. The result is deterministic."""
    rules, solve = terms.rules, terms.solve
    base = _with_expected(cluster, fleet)
    candidates = candidates_of(offers)
    startup = Startup(boot_s=terms.boot_s, idle_s=rules.idle_s)
    room = rules.max_machines - len(fleet.machines)
    renting, keeping = prices_of(base, candidates, terms.policy, room=room, startup=startup)
    most_usd_per_h = min(cluster.cap_usd_per_h, renting.rents_usd_per_h)
    bounds = _Bounds(room_within(most_usd_per_h, fleet, rules), terms.cooling)
    solver = _RoundSolver(renting, solve, fleet.settled)
    rent, base, held_back = _rented(base, candidates, bounds, solver, startup)
    keeper = solver if keeping is renting else _RoundSolver(keeping, solve, fleet.settled)
    if held_back and renting.rents_usd_per_h < cluster.cap_usd_per_h:
        held_back += "; the long-run budget cannot pay all jobs at their cheapest"
    release, low = _released(base, fleet, rules, solver, keeper, terms.low_since)
    return RentalTargets(rent=tuple(rent), release=tuple(release), low_since=low, held_back=held_back)


def _with_expected(cluster: RentalCluster, fleet: Fleet) -> RentalCluster:
    """Return the cluster including the machines that are being launched."""
    return cluster.plus(
        [
            made_up_node(one.id, one.slots, one.device_kind, one.market, one.usd_per_slot_h)
            for one in fleet.machines
            if one.state in {MachineState.WANTED, MachineState.LAUNCHING} and one.id not in fleet.nodes
        ]
    )


@dataclass(frozen=True, slots=True)
class _Buy:
    """Machines that might be rented together, with the resulting gains.

    `used_share` is the share of their paid time in which jobs use them, and `mu_h_per_usd` the price of delay,
    if there is one.
    """

    candidate: Candidate
    nodes: Sequence[Node]
    usd_per_h: float
    gains: Mapping[str, float]
    outcome: _Outcome
    used_share: float = 1.0
    mu_h_per_usd: float | None = None

    @property
    def worth(self) -> float:
        """Worth of the machines in dollars per paid hour."""
        return sum(self.gains.values()) * self.used_share

    @property
    def rank(self) -> tuple[float, float, str]:
        """Sort key of a buy: the best buy has the highest."""
        if self.mu_h_per_usd is not None:
            return self.worth - self.usd_per_h, -self.usd_per_h, self.candidate.name
        return self.worth / max(self.usd_per_h, 1e-9), -self.usd_per_h, self.candidate.name


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Limits on renting more machines, and the places where launches are suspended."""

    room: RentalRoom
    cooling: Mapping[RentalPlace, LaunchBackoff]

    def obstacle(self, buy: _Buy) -> str:
        """Return the reason why the machines may not be rented now, empty if they may."""
        obstacle = self.room.obstacle(buy.candidate, len(buy.nodes))
        cool = self.cooling.get(buy.candidate.place)
        if obstacle or cool is None:
            return obstacle
        return f"launches there are suspended until {cool.until:%H:%M:%S} UTC: {cool.message}"

    def after(self, buy: _Buy) -> _Bounds:
        return replace(self, room=self.room.after(buy.candidate, len(buy.nodes)))


def _rented(
    base: RentalCluster,
    candidates: Sequence[Candidate],
    bounds: _Bounds,
    round_solver: _RoundSolver,
    startup: Startup,
) -> tuple[list[RentalTarget], RentalCluster, str]:
    """Rent one machine after another, the best buy first, until none is worth its price or a limit is reached."""
    wants: list[RentalTarget] = []
    purchases, held_back = 0, ""
    if not candidates or not base.sizes:
        return wants, base, held_back
    here = round_solver.outcome(base)
    while here.goodput and purchases < _MOST_PURCHASES:
        best = None
        for buy in _buys(base, here, candidates, bounds, len(wants), round_solver, startup):
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
        purchases += 1
        base, here, bounds = base.plus(best.nodes), best.outcome, bounds.after(best)
    return wants, base, held_back


def _buys(
    base: RentalCluster,
    here: _Outcome,
    candidates: Sequence[Candidate],
    bounds: _Bounds,
    serial: int,
    round_solver: _RoundSolver,
    startup: Startup,
) -> Iterator[_Buy]:
    """Yield every set of machines that is worth its price."""
    prices = round_solver.prices
    for candidate in candidates:
        for count in _counts(here, candidate, prices, bounds):
            if not round_solver.has_time():
                return
            nodes = made_up(candidate, count, f"want-{serial}-{candidate.name}")
            there = round_solver.outcome(base.plus(nodes))
            price = candidate.usd_per_h * count
            buy = _Buy(candidate, nodes, price, _gains(here, there), there)
            if prices.mu_h_per_usd is not None:
                share = startup.used_share(candidate, _use_s(buy))
                buy = replace(buy, used_share=share, mu_h_per_usd=prices.mu_h_per_usd)
            if buy.worth > price:
                yield buy


def _use_s(buy: _Buy) -> float:
    """Return the seconds for which jobs use the machines: the mean of the jobs' ends, weighted by their gains."""
    gains = {job: gain for job, gain in buy.gains.items() if gain > 0}
    total = sum(gains.values())
    if not total > 0:
        return 0.0
    return sum(gain * buy.outcome.left_s[job] for job, gain in gains.items()) / total


def _counts(here: _Outcome, candidate: Candidate, prices: Prices, bounds: _Bounds) -> list[int]:
    """Return the numbers of machines worth trying at once.

    These are one, as many as some job's next size takes, and by the price of delay as many as some job's best
    width takes, as far as limits allow.
    """
    devices = candidate.offer.devices
    steps = {-(-job.next_step(here.slots[job.id]) // devices) for job in here.round.jobs}
    counts = sorted({1, *steps})[:_MOST_COUNTS]
    if prices.mu_h_per_usd is None:
        return counts
    most = bounds.room.count(candidate)
    missing = (prices.widths.get(job.id, 0) - here.slots[job.id] for job in here.round.jobs)
    best = {min(-(-slots // devices), most) for slots in missing if slots > 0}
    return sorted({*counts, *sorted(best)[-_MOST_COUNTS:]} - {0})


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
    worth = f"worth {dollars(buy.worth)}/h at a price of {dollars(buy.usd_per_h)}/h, for {each}"
    if buy.mu_h_per_usd is None:
        return f"{what}: {worth}"
    return f"{what}: spares {buy.worth * buy.mu_h_per_usd:.2g} h of delay per hour, {worth}"


def _faster(here: _Outcome, there: _Outcome, job: str) -> str:
    return f"{there.goodput[job] / here.goodput[job] - 1:+.0%}"


def _released(
    base: RentalCluster,
    fleet: Fleet,
    rules: RentalRules,
    renter: _RoundSolver,
    keeper: _RoundSolver,
    low_since: Mapping[str, datetime],
) -> tuple[list[Release], dict[str, datetime]]:
    """Return the machines that have long been worth less than their price, the worst buy first.

    `keeper` has the prices for machines with jobs, `renter` those for the others: rounds decide at mu itself
    whether a job gets the slots of an idle machine.
    """
    low: dict[str, datetime] = {}
    releases: list[Release] = []
    now = base.now
    held = {one.id for one in fleet.machines if base.holders(fleet.nodes.get(one.id, ""))}
    # Among equal machines, an idle one goes first, so that no job has to move.
    worst_first = sorted(fleet.machines, key=lambda one: (-one.usd_per_slot_h, one.id in held, one.id))
    here: dict[bool, _Outcome] = {}
    worths: dict[Hashable, float] = {}
    for machine in worst_first:
        node_id = fleet.nodes.get(machine.id, "")
        if machine.state is not MachineState.RUNNING or not base.is_judged(node_id):
            continue
        if machine.id in fleet.kept:
            continue
        keeps = machine.id in held
        solver = keeper if keeps else renter
        if keeps not in here:
            here[keeps] = here[not keeps] if keeper is renter and here else solver.outcome(base)
        present = here[keeps]
        deciding = {job.id for job in present.round.jobs}
        if not (solver.has_time() and base.holders(node_id) <= deciding):
            continue
        key = base.likeness(node_id)
        if key not in worths:
            gains = _gains(solver.outcome(base.without(node_id)), present)
            worths[key] = max(0.0, sum(gains.values()))
        worth = worths[key]
        least = machine.usd_per_h / (HYSTERESIS if solver.prices.mu_h_per_usd is None else 1.0)
        if worth > 0 and worth >= least:
            continue
        since = low[machine.id] = min(low_since.get(machine.id, now), now)
        if (now - since).total_seconds() < rules.idle_s or billed_s(machine, now) <= machine.min_billed_s:
            continue
        releases.append(_release(machine, worth, (now - since).total_seconds(), held=machine.id in held))
        base = base.without(node_id)
        here.clear()
        worths.clear()
    return releases, low


def _release(machine: Machine, worth: float, low_s: float, *, held: bool) -> Release:
    what = "no job has needed it" if worth == 0 else f"it has been worth only {dollars(worth)}/h to jobs"
    return Release(
        machine_id=machine.id,
        reason=MachineReason.NOT_WORTH_IT if held else MachineReason.IDLE,
        message=f"{what} for {low_s:.0f} s, and it costs {dollars(machine.usd_per_h)}/h",
    )
