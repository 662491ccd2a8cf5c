"""Mean completion time by dollars on rented nodes: the service's renting under `budget`, and Pollux with its autoscaling.

    python -m benchmarks.budget_curve --json

Both rent up to 64 whole nodes of 4 t4 for the jobs of a published stream. A node boots for two minutes and is paid for from
the decision on, for at least a minute, at a dollar per hour for each slot, used or not. The budget policy has one price of
delay for the whole stream, and `decide_rental_targets` of the service rents and releases its nodes at this price. Pollux keeps
its utility, the speedup of the rented slots over as many single slots, in a band. Outside the band, it rents the number of
nodes whose utility is closest to the middle (OSDI'21, section 4.2.2). Five bands, of which the middle one is the published one,
give five budgets. The hours of the budget policy for a budget are interpolated by dollars, both in logarithms, between
replayed prices. A change costs the measured restart.

`ratio`: Pollux's mean completion time over that of the budget policy for no more dollars; null if no replayed price spends as
little. `ratio_least` and `ratio_published`: the lowest ratio, and that of the published band. The keys with `_live` compare
the budget policy with live resize and rounds on events with Pollux with restarts and rounds every minute. `ratio_most` and
`ratio_most_live`: upper bounds for any policy in this world (`benchmarks.budget_bound`), even without boots and with single
slots. They are low where Pollux rents more than the jobs can use. `within_bound` and `within_bound_live`: mean of the budget
policy's completion time over that bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.arguments import benchmark_parser, pool, run_benchmark, show
from benchmarks.budget_bound import least_hours
from benchmarks.policies import RESIZES, WORKLOADS, published_world
from headway.contract.values.markets import Market
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.framework.policy import Policy, RoundInput
from service.domain.policies.framework.speedup import clean_goodput
from service.domain.policies.pollux import Pollux
from service.domain.rental.machines import MachineReason, cost_usd
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import (
    Fleet,
    Release,
    RentalRules,
    RentalTarget,
    RentalTargets,
    RentalTerms,
)
from service.domain.rental.worth.clusters import RentalCluster
from service.simulation.model.world import Kind, View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary
from service.simulation.replay.renting import Renter, ReplayRenting, ServiceRenter, time_of

NODES, NODE_SLOTS = 64, 4
"""With half as many nodes, their number would limit the policies instead of the budget."""
KINDS = (Kind(name="t4", node_slots=(NODE_SLOTS,) * NODES, usd_per_slot_h=1.0),)
RENTING = ReplayRenting(rules=RentalRules(max_machines=NODES))
Play = tuple[str, Policy, Renter]
"""Kind of resize, policy and renter of a replay."""
MIDDLES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Middles of the bands; the published band is 0.35 to 0.65."""
HALF_BAND = 0.15
CHANGES = ("restart", "live")
"""Keys of `RESIZES` for the budget policy."""
PUBLISHED = 0.5
QUICK_JOBS = 8
PRICES_H_PER_USD = tuple(np.geomspace(0.002, 0.5, 9).tolist())


@dataclass(frozen=True, slots=True)
class UtilityBand:
    """Renter of Pollux: the number of nodes that keeps the utility of a slot in a band around `middle`."""

    middle: float

    def targets(
        self, cluster: RentalCluster, fleet: Fleet, offers: Sequence[Offer], terms: RentalTerms
    ) -> RentalTargets:
        """Return the nodes to rent and to release."""
        given, rented = cluster.round(terms.policy).given, len(fleet.machines)
        nodes = self._nodes(given, rented) if len(given.current) else 0
        (offer,) = offers
        usd_per_h = offer.usd_per_h(Market.ON_DEMAND)
        assert usd_per_h is not None
        one = RentalTarget(offer=offer, market=Market.ON_DEMAND, usd_per_h=usd_per_h, message="")
        idle_first = sorted(fleet.nodes.items(), key=lambda pair: (len(cluster.holders(pair[1])), pair[0]))
        return RentalTargets(
            rent=(one,) * (nodes - rented),
            release=tuple(
                Release(machine_id=machine, reason=MachineReason.NOT_WORTH_IT, message="")
                for machine, _ in idle_first[: max(rented - nodes, 0)]
            ),
        )

    def _nodes(self, given: RoundInput, rented: int) -> int:
        """Return the rented nodes if their utility is in the band, else the number whose utility is closest to the middle.

        The utility decreases with the number of nodes.
        """
        if rented and abs(_utility(given, rented) - self.middle) <= HALF_BAND:
            return rented
        tried: dict[int, float] = {}
        low, high = 1, NODES
        while low <= high:
            nodes = (low + high) // 2
            utility = _utility(given, nodes)
            tried[nodes] = abs(utility - self.middle)
            low, high = (nodes + 1, high) if utility > self.middle else (low, nodes - 1)
        return min(tried, key=lambda nodes: (tried[nodes], nodes))


def main() -> None:
    parser = benchmark_parser(__doc__, quick="the published band, two prices, the first jobs of the stream")
    parser.add_argument("--workload", choices=WORKLOADS, default=WORKLOADS[0])
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    arguments = parser.parse_args()
    jobs, middles = (QUICK_JOBS, (PUBLISHED,)) if arguments.quick else (None, MIDDLES)
    prices = PRICES_H_PER_USD[::8] if arguments.quick else PRICES_H_PER_USD
    pollux: list[Play] = [("restart", Pollux(), UtilityBand(middle)) for middle in middles]
    budget: list[Play] = [
        (resize, BudgetPolicy(mu_h_per_usd=price), ServiceRenter()) for resize in CHANGES for price in prices
    ]
    with pool(arguments.processes) as workers:
        played = list(workers.map(partial(_replay_figures, arguments.workload, jobs), pollux + budget))
    theirs, ours = played[: len(pollux)], played[len(pollux) :]
    curves = {resize: ours[turn * len(prices) :][: len(prices)] for turn, resize in enumerate(CHANGES)}
    result = _compare(arguments.workload, jobs, middles, prices, theirs, curves)
    show(result, arguments)


def _world(workload: str, resize: str, jobs: int | None) -> World:
    rules = dataclasses.replace(RESIZES[resize], view=View.ORACLE)
    return published_world(KINDS, workload, rules, seed=0, jobs=jobs)


def _replay_figures(workload: str, jobs: int | None, play: Play) -> dict[str, float]:
    """Return the dollars and hours of a stream under a policy.

    Raises:
        BadInput: the measured data are missing.
    """
    resize, policy, renter = play
    found = replay(_world(workload, resize, jobs), policy, renting=(RENTING, renter))
    usd = sum(cost_usd(machine, time_of(found.end_s)) for machine in found.machines)
    figures = summary(found)
    return {
        "usd": usd,
        "avg_jct_h": figures["avg_jct_h"],
        "p99_jct_h": figures["p99_jct_h"],
        "machines": len(found.machines),
    }


def _compare(
    workload: str,
    jobs: int | None,
    middles: Sequence[float],
    prices: Sequence[float],
    pollux: Sequence[dict[str, float]],
    curves: Mapping[str, Sequence[dict[str, float]]],
) -> dict[str, Any]:
    """Return the result: Pollux's points, with the hours of the budget policy and the bound for the same dollars."""
    usd = [one["usd"] for one in pollux]
    points: list[dict[str, float | None]] = [
        {"middle": middle, "usd": one["usd"], "pollux_jct_h": one["avg_jct_h"]}
        for middle, one in zip(middles, pollux, strict=True)
    ]
    result: dict[str, Any] = {}
    for resize, curve in curves.items():
        suffix = "" if resize == "restart" else f"_{resize}"
        world = _world(workload, resize, jobs)
        bounds = least_hours(world, usd, change_s=world.rules.live_pause_s)
        for point, theirs, bound in zip(points, pollux, bounds, strict=True):
            same = hours_for([(one["usd"], one["avg_jct_h"]) for one in curve], theirs["usd"])
            point[f"budget_jct_h{suffix}"] = same
            point[f"ratio{suffix}"] = None if same is None else theirs["avg_jct_h"] / same
            point[f"ratio_most{suffix}"] = theirs["avg_jct_h"] / bound
            point[f"over_bound{suffix}"] = None if same is None else same / bound
        ratios = [point[f"ratio{suffix}"] for point in points]
        result[f"ratio_least{suffix}"] = min((one for one in ratios if one is not None), default=None)
        over = [one for point in points if (one := point[f"over_bound{suffix}"]) is not None]
        result[f"within_bound{suffix}"] = float(np.mean(over)) if over else None
        result[f"ratio_published{suffix}"] = ratios[middles.index(PUBLISHED)]
        result[f"budget_curve{suffix}"] = [
            {"mu_h_per_usd": price, **one} for price, one in zip(prices, curve, strict=True)
        ]
    return {**result, "points": points}


def hours_for(curve: Sequence[tuple[float, float]], usd: float) -> float | None:
    """Return the mean completion time for at most `usd` dollars, interpolated between pairs of dollars and hours.

    Return None for fewer dollars than any pair has.
    """
    spent, hours = np.array(sorted(curve)).T
    if usd < spent[0]:
        return None
    return float(np.exp(np.interp(np.log(usd), np.log(spent), np.log(hours))))


def _utility(given: RoundInput, nodes: int) -> float:
    """Return the sum of the speedups over one slot, divided by the slots of these nodes, under Pollux."""
    slots = dataclasses.replace(given.rows[0], capacity=float(nodes * NODE_SLOTS))
    choices = Pollux().choose(dataclasses.replace(given, rows=(slots, *given.rows[1:])), solve)
    goodput = clean_goodput(given)
    one = np.where(given.configurations.slots == 1, goodput, 0.0).max(axis=1)
    has = (choices.chosen != NOTHING) & (one > 0)
    speedup = goodput[has, choices.chosen[has]] / one[has]
    return float(speedup.sum()) / (nodes * NODE_SLOTS)


if __name__ == "__main__":
    run_benchmark(main)
