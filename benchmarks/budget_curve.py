"""Mean completion time by dollars on rented nodes: the budget policy compared with Pollux and its autoscaling.

    python -m benchmarks.budget_curve --json

Both policies rent up to 64 whole nodes of 4 t4 for the jobs of a published stream. They pay a dollar per hour for each slot
from round to round, used or not. Pollux keeps its utility, the speedup of the rented slots over as many single slots, in a
band. Outside the band, it rents the number of nodes whose utility is closest to the middle (OSDI'21, section 4.2.2). Five
bands, of which the middle one is the published one, give five budgets. The budget policy has one price of delay for the whole
stream. Its hours for a budget are interpolated by dollars, both in logarithms, between replayed prices. A change costs the
measured restart.

`ratio`: Pollux's mean completion time over that of the budget policy for no more dollars; null if no replayed price spends as
little. `ratio_least` and `ratio_published`: the lowest ratio, and that of the published band. The keys with `_live` compare
the budget policy with live resize and rounds on events with Pollux with restarts and rounds every minute. `ratio_most` and
`ratio_most_live`: upper bounds for any policy in this world (`benchmarks.budget_bound`). They are low where Pollux rents more
than the jobs can use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.arguments import benchmark_parser, pool, run_benchmark, show
from benchmarks.budget_bound import least_hours
from benchmarks.policies import RESIZES, WORKLOADS, published_world
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.framework.policy import Choices, Policy, RoundInput
from service.domain.policies.framework.speedup import clean_goodput
from service.domain.policies.pollux import Pollux
from service.domain.shared.arrays import FloatArray, IntArray
from service.simulation.model.world import Kind, View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary

NODES, NODE_SLOTS = 64, 4
"""With half as many nodes, their number would limit the policies instead of the budget."""
KINDS = (Kind(name="t4", node_slots=(NODE_SLOTS,) * NODES, usd_per_slot_h=1.0),)
MIDDLES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Middles of the bands; the published band is 0.35 to 0.65."""
HALF_BAND = 0.15
CHANGES = ("restart", "live")
"""Keys of `RESIZES` for the budget policy."""
PUBLISHED = 0.5
QUICK_JOBS = 20
PRICES_H_PER_USD = tuple(np.geomspace(0.002, 0.5, 9).tolist())


@dataclass(slots=True)
class Autoscaled:
    """Pollux on the number of nodes that keeps the utility of a slot in a band. `rented` has the nodes of every round."""

    name: ClassVar[str] = "pollux"
    middle: float
    rented: list[int] = field(default_factory=list)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Choose the nodes and the configurations of a round."""
        nodes = self.rented[-1] if self.rented else 1
        choices = self._on(given, solve, nodes)
        if abs(_utility(given, choices, nodes) - self.middle) > HALF_BAND:
            nodes, choices = self._nearest(given, solve)
        self.rented.append(nodes)
        return choices

    def _nearest(self, given: RoundInput, solve: Solve) -> tuple[int, Choices]:
        """Return the number of nodes whose utility is closest to the middle, with its choices.

        The utility decreases with the number of nodes.
        """
        tried: dict[int, tuple[float, Choices]] = {}
        low, high = 1, NODES
        while low <= high:
            nodes = (low + high) // 2
            choices = self._on(given, solve, nodes)
            utility = _utility(given, choices, nodes)
            tried[nodes] = abs(utility - self.middle), choices
            low, high = (nodes + 1, high) if utility > self.middle else (low, nodes - 1)
        nearest = min(tried, key=lambda nodes: (tried[nodes][0], nodes))
        return nearest, tried[nearest][1]

    @staticmethod
    def _on(given: RoundInput, solve: Solve, nodes: int) -> Choices:
        """Return Pollux's choices on this number of nodes."""
        slots = dataclasses.replace(given.rows[0], capacity=float(nodes * NODE_SLOTS))
        return Pollux().choose(dataclasses.replace(given, rows=(slots, *given.rows[1:])), solve)


@dataclass(slots=True)
class Rented:
    """Another policy that rents the nodes that its choices need. `rented` has the nodes of every round."""

    policy: Policy
    rented: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self.policy.name

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Choose the configurations of a round."""
        choices = self.policy.choose(given, solve)
        self.rented.append(-(-int(_slots(given, choices.chosen).sum()) // NODE_SLOTS))
        return choices


def main() -> None:
    parser = benchmark_parser(__doc__, quick="the published band, two prices, the first jobs of the stream")
    parser.add_argument("--workload", choices=WORKLOADS, default=WORKLOADS[0])
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    arguments = parser.parse_args()
    jobs, middles = (QUICK_JOBS, (PUBLISHED,)) if arguments.quick else (None, MIDDLES)
    prices = PRICES_H_PER_USD[::8] if arguments.quick else PRICES_H_PER_USD
    pollux = [Autoscaled(middle) for middle in middles]
    budget = [Rented(BudgetPolicy(mu_h_per_usd=price)) for price in prices]
    plays = [("restart", one) for one in pollux] + [(resize, one) for resize in CHANGES for one in budget]
    with pool(arguments.processes) as workers:
        played = list(
            workers.map(partial(_replay_figures, arguments.workload, jobs), *zip(*plays, strict=True))
        )
    theirs, ours = played[: len(pollux)], played[len(pollux) :]
    curves = {resize: ours[turn * len(budget) :][: len(budget)] for turn, resize in enumerate(CHANGES)}
    result = _compare(arguments.workload, jobs, middles, prices, theirs, curves)
    show(result, arguments)


def _world(workload: str, resize: str, jobs: int | None) -> World:
    rules = dataclasses.replace(RESIZES[resize], view=View.ORACLE)
    return published_world(KINDS, workload, rules, seed=0, jobs=jobs)


def _replay_figures(
    workload: str, jobs: int | None, resize: str, policy: Autoscaled | Rented
) -> dict[str, float]:
    """Return the dollars and hours of a stream under a policy.

    Raises:
        BadInput: the measured data are missing.
    """
    world = _world(workload, resize, jobs)
    found = replay(world, policy)
    time_s = found.rounds.time_s
    # Without jobs there are no rounds, and nothing is rented.
    lengths_s = np.minimum(np.diff(time_s, append=found.end_s), world.rules.interval_s)
    usd = float(np.array(policy.rented) @ lengths_s) * NODE_SLOTS / 3600
    figures = summary(found)
    return {"usd": usd, "avg_jct_h": figures["avg_jct_h"], "p99_jct_h": figures["p99_jct_h"]}


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
        ratios = [point[f"ratio{suffix}"] for point in points]
        result[f"ratio_least{suffix}"] = min((one for one in ratios if one is not None), default=None)
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


def _utility(given: RoundInput, choices: Choices, nodes: int) -> float:
    """Return the sum of the speedups over one slot, divided by the rented slots."""
    goodput = clean_goodput(given)
    one = np.where(given.configurations.slots == 1, goodput, 0.0).max(axis=1)
    has = (choices.chosen != NOTHING) & (one > 0)
    speedup = goodput[has, choices.chosen[has]] / one[has]
    return float(speedup.sum()) / (nodes * NODE_SLOTS)


def _slots(given: RoundInput, chosen: IntArray) -> FloatArray:
    """Return the slots of each choice, with shape (jobs,)."""
    return np.where(chosen != NOTHING, given.configurations.slots[chosen], 0).astype(np.float64)


if __name__ == "__main__":
    run_benchmark(main)
