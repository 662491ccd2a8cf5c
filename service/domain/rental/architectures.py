"""Architecture of a plan as an integer program: the types, numbers, markets and roles of its machines. Pure.

OR-Tools CP-SAT solves it on one thread, so the result is deterministic. The program chooses a row: a type of
worker and a number of machines that train. Where the architecture has a second kind of machine, it also
chooses one type of those and their number. The value of a row is a number in a table, so it may be any
function of the row.

    maximise   value of the row, then the fewest dollars per hour
    subject to dollars per hour           <= max_usd_per_h
               vCPUs of family on market  <= quota
    TIERING    n workers < N_sat(slower network of the two) * m,   m * memory >= checkpoint * buffer     (DeepVM 4.b)
    ANCHORED   devices of x spot workers + devices of m anchors = devices of the row,   x >= 1, m >= 1

In DeepVM each remote node must hold the whole buffered checkpoint. Here, the remote nodes hold it together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ortools.sat.python import cp_model

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
    quota_of,
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
_VALUES: Final = 1_000_000_000
_MOST_MACHINES: Final = 4096
_SECONDS: Final = 5.0
_PAIRED: Final = frozenset({Architecture.TIERING, Architecture.ANCHORED})
"""Architectures with a second kind of machine."""
_SOLVED: Final = (cp_model.OPTIMAL, cp_model.FEASIBLE)


def saturation(gbps: float) -> int:
    """Return the number of workers that saturate a remote node. Fewer than that must send to it."""
    return max((nodes for least, nodes in _SATURATION if gbps >= least), default=1)


def machines_within_quota(offer: Offer, limits: PlanLimits, market: Market = Market.SPOT) -> int:
    """Return the largest number of machines of a type that its quota allows."""
    quota = quota_of(offer, market, limits)
    return _MOST_MACHINES if quota is None or not offer.vcpus else quota // offer.vcpus


@dataclass(frozen=True, slots=True)
class _Pair:
    """Type of worker with a second type of machine, by index of offer.

    `chosen` is the variable that selects the pair, and `machines` the variable for the number of machines of
    the second type.
    """

    worker: int
    other: int
    chosen: Any
    machines: Any


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
    rows = [row for row in rows if _sold(architecture, offers[row.offer], row.machines, limits)]
    if not rows:
        return None
    if architecture not in _PAIRED and len(rows) == 1 and not exclude:
        plan = _plain(architecture, offers[rows[0].offer], rows[0].machines)
        return plan if within(plan, limits) else None
    program = _Program(architecture, offers, rows, limits)
    if not program.possible:
        return None
    for plan in exclude:
        program.exclude(plan)
    return program.solve()


def within(plan: MachinePlan, limits: PlanLimits) -> bool:
    """Return whether a plan keeps to the limits on dollars per hour and vCPUs."""
    vcpus: dict[str, int] = {}
    for one in plan.groups:
        key = f"{family(one.offer.instance_type)}/{one.market}"
        vcpus[key] = vcpus.get(key, 0) + one.machines * one.offer.vcpus
    usd = sum(one.machines * _micro(one.offer.usd_per_h(one.market)) for one in plan.groups)
    cheap = limits.max_usd_per_h is None or usd <= _micro(limits.max_usd_per_h)
    return cheap and all(used <= limits.vcpus.get(key, used) for key, used in vcpus.items())


def _plain(architecture: Architecture, offer: Offer, machines: int) -> MachinePlan:
    """Return the plan of an architecture without a second kind of machine."""
    match architecture:
        case Architecture.SINGLE_ANCHOR:
            groups = (
                MachineGroup(Role.WORKER, offer, Market.SPOT, machines - 1),
                MachineGroup(Role.ANCHOR, offer, Market.ON_DEMAND, 1),
            )
            return MachinePlan(architecture, groups)
        case Architecture.ALL_ON_DEMAND:
            return MachinePlan(architecture, (MachineGroup(Role.WORKER, offer, Market.ON_DEMAND, machines),))
    return MachinePlan(architecture, (MachineGroup(Role.WORKER, offer, Market.SPOT, machines),))


def _sold(architecture: Architecture, offer: Offer, machines: int, limits: PlanLimits) -> bool:
    """Return whether the workers of a row are sold on the markets of the architecture and fit their share in memory."""
    markets = {
        Architecture.ALL_ON_DEMAND: (Market.ON_DEMAND,),
        Architecture.SINGLE_ANCHOR: (Market.ON_DEMAND, Market.SPOT),
    }.get(architecture, (Market.SPOT,))
    least = 2 if architecture is Architecture.SINGLE_ANCHOR else 1
    fits = not limits.device_bytes or offer.device_memory_bytes >= limits.device_bytes
    return fits and machines >= least and all(offer.usd_per_h(one) is not None for one in markets)


def _micro(usd_per_h: float | None) -> int:
    return round((usd_per_h or 0.0) * _MICRO)


class _Program:
    """Integer program of one architecture."""

    def __init__(
        self,
        architecture: Architecture,
        offers: Sequence[Offer],
        rows: Sequence[WorkerChoice],
        limits: PlanLimits,
    ) -> None:
        self._architecture, self._offers, self._rows, self._limits = architecture, offers, rows, limits
        self._model = cp_model.CpModel()
        self._of_row = [self._model.new_bool_var("") for _ in rows]
        self._model.add_exactly_one(self._of_row)
        workers = {row.offer for row in rows}
        # 1 if the row is of a type, and then the row's machines; 0 for all other types.
        self._chosen = {worker: self._sum(worker, lambda _: 1) for worker in workers}
        self._machines = {worker: self._sum(worker, lambda row: row.machines) for worker in workers}
        self._spot = {one: self._model.new_int_var(0, _MOST_MACHINES, "") for one in workers}
        self._pairs = self._paired(workers)
        self.possible = architecture not in _PAIRED or bool(self._pairs)
        if not self.possible:
            return
        if self._pairs:
            self._model.add_exactly_one([pair.chosen for pair in self._pairs])
        for worker in workers:
            self._bind(worker)
        for pair in self._pairs:
            self._bind_pair(pair)
        self._usd = self._price()
        self._within()

    def _paired(self, workers: Collection[int]) -> list[_Pair]:
        if self._architecture not in _PAIRED:
            return []
        return [
            _Pair(
                worker,
                other,
                self._model.new_bool_var(""),
                self._model.new_int_var(0, _MOST_MACHINES, ""),
            )
            for worker in sorted(workers)
            for other, offer in enumerate(self._offers)
            if self._goes_with(self._offers[worker], offer)
        ]

    def _goes_with(self, worker: Offer, other: Offer) -> bool:
        if (worker.provider, worker.region) != (other.provider, other.region):
            return False
        if other.on_demand_usd_per_h is None:
            return False
        if self._architecture is Architecture.TIERING:
            return other.device_kind == "cpu" and other.memory_bytes > 0
        fits = not self._limits.device_bytes or other.device_memory_bytes >= self._limits.device_bytes
        return fits and other.device_kind == worker.device_kind

    def _sum(self, worker: int, of: Callable[[WorkerChoice], int]) -> Any:
        chosen = self._model.new_int_var(0, _MOST_MACHINES, "")
        rows = zip(self._of_row, self._rows, strict=True)
        self._model.add(chosen == sum(one * of(row) for one, row in rows if row.offer == worker))
        return chosen

    def _bind(self, worker: int) -> None:
        """Constrain the number of workers of the type on spot."""
        spot, machines = self._spot[worker], self._machines[worker]
        match self._architecture:
            case Architecture.ALL_SPOT | Architecture.TIERING:
                self._model.add(spot == machines)
            case Architecture.SINGLE_ANCHOR:
                self._model.add(spot == machines - self._chosen[worker])
            case Architecture.ALL_ON_DEMAND:
                self._model.add(spot == 0)
            case Architecture.ANCHORED:
                self._model.add(spot >= self._chosen[worker])
                self._model.add(spot <= machines)

    def _bind_pair(self, pair: _Pair) -> None:
        worker, other = self._offers[pair.worker], self._offers[pair.other]
        self._model.add(pair.machines <= _MOST_MACHINES * pair.chosen)
        self._model.add(pair.chosen <= self._chosen[pair.worker])
        self._model.add(pair.machines >= pair.chosen)
        machines = self._machines[pair.worker]
        if self._architecture is Architecture.TIERING:
            sends = saturation(min(worker.network_gbps, other.network_gbps))
            self._model.add(pair.machines * sends >= machines + 1).only_enforce_if(pair.chosen)
            needed_mib = int(self._limits.checkpoint_bytes * self._limits.buffer) >> 20
            memory_mib = max(other.memory_bytes >> 20, 1)
            self._model.add(pair.machines * memory_mib >= needed_mib).only_enforce_if(pair.chosen)
        else:
            devices = self._spot[pair.worker] * worker.devices + pair.machines * other.devices
            self._model.add(devices == machines * worker.devices).only_enforce_if(pair.chosen)

    def _on_demand(self) -> list[tuple[int, Any]]:
        """Return the machines on demand, by offer."""
        found = [(pair.other, pair.machines) for pair in self._pairs]
        if self._architecture is Architecture.SINGLE_ANCHOR:
            found += [(worker, self._chosen[worker]) for worker in self._spot]
        if self._architecture is Architecture.ALL_ON_DEMAND:
            found += [(worker, self._machines[worker]) for worker in self._spot]
        return found

    def _price(self) -> Any:
        """Return the price in millionths of a dollar per hour."""
        spot = sum(_micro(self._offers[one].spot_usd_per_h) * count for one, count in self._spot.items())
        return spot + sum(
            _micro(self._offers[one].on_demand_usd_per_h) * count for one, count in self._on_demand()
        )

    def _within(self) -> None:
        """Add the constraints on dollars per hour and quotas."""
        if self._limits.max_usd_per_h is not None:
            self._model.add(self._usd <= _micro(self._limits.max_usd_per_h))
        used: dict[tuple[str, Market], list[Any]] = {}
        for market, counts in ((Market.SPOT, self._spot.items()), (Market.ON_DEMAND, self._on_demand())):
            for one, count in counts:
                offer = self._offers[one]
                if quota_of(offer, market, self._limits) is not None:
                    key = (family(offer.instance_type), market)
                    used.setdefault(key, []).append(count * offer.vcpus)
        for (letters, market), vcpus in used.items():
            self._model.add(sum(vcpus) <= self._limits.vcpus[f"{letters}/{market}"])

    def exclude(self, plan: MachinePlan) -> None:
        """Exclude all plans with this plan's row and types."""
        if plan.architecture is not self._architecture:
            return
        first, second = plan.groups[0].offer, plan.groups[-1].offer
        machines = plan.slots // first.devices
        for one, row in zip(self._of_row, self._rows, strict=True):
            if self._offers[row.offer] != first or row.machines != machines:
                continue
            pairs = [
                pair
                for pair in self._pairs
                if pair.worker == row.offer and self._offers[pair.other] == second
            ]
            for pair in pairs:
                self._model.add_bool_or(one.negated(), pair.chosen.negated())
            if not self._pairs:
                self._model.add(one == 0)

    def solve(self) -> MachinePlan | None:
        """Return the best plan, or None if there is none."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = _SECONDS
        most = max(abs(row.value) for row in self._rows)
        if most > 0 and len(self._rows) > 1:
            worth = sum(
                round(row.value / most * _VALUES) * one
                for one, row in zip(self._of_row, self._rows, strict=True)
            )
            self._model.maximize(worth)
            if solver.solve(self._model) not in _SOLVED:
                return None
            self._model.add(worth >= round(solver.objective_value))
        self._model.minimize(self._usd)
        return self._plan(solver) if solver.solve(self._model) in _SOLVED else None

    def _plan(self, solver: cp_model.CpSolver) -> MachinePlan:
        row = next(
            row for one, row in zip(self._of_row, self._rows, strict=True) if solver.boolean_value(one)
        )
        offer, spot = self._offers[row.offer], solver.value(self._spot[row.offer])
        if self._architecture not in _PAIRED:
            return _plain(self._architecture, offer, row.machines)
        groups = [MachineGroup(Role.WORKER, offer, Market.SPOT, spot)]
        for pair in self._pairs:
            if solver.boolean_value(pair.chosen):
                role = Role.REMOTE if self._architecture is Architecture.TIERING else Role.ANCHOR
                count = solver.value(pair.machines)
                groups.append(MachineGroup(role, self._offers[pair.other], Market.ON_DEMAND, count))
        return MachinePlan(self._architecture, tuple(groups))
