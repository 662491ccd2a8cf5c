"""Mean completion time by dollars: the budget policy against Pollux with its autoscaling, where nodes are rented.

    python -m benchmarks.budget_curve --json

Both rent whole nodes of 4 t4 for the jobs of a published stream, as many as they like up to 64, and pay for them from
round to round, used or not, a dollar an hour for each slot. Pollux asks that what the rented slots give together, over
what as many single slots would give, stays in a band, and where it does not, rents the number of nodes that comes
nearest to its middle (OSDI'21, section 4.2.2). Five bands, of which the middle one is theirs, make five budgets. The
budget policy has one price of delay for the whole stream, which makes it spend as much: hours are interpolated by
dollars, both in logarithms, between prices that were played. Changes cost the measured restarts.

`ratio` is Pollux's mean completion time over that of the budget policy at the same dollars, null where no price that
was played makes it spend as little or as much; `ratio_least` and `ratio_published` are the least one and that of their
own band.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.policies import WORKLOADS, published_world
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.arrays import FloatArray, IntArray
from service.domain.policies.budget import Budget
from service.domain.policies.policy import Choices, Policy, RoundInput
from service.domain.policies.pollux import Pollux
from service.domain.policies.speedup import clean_goodput
from service.simulation.engine import replay
from service.simulation.metrics import summary
from service.simulation.world import BadInput, Kind, Rules, View

NODES, NODE_SLOTS = 64, 4
"""With half as many nodes it is their number that bounds what money could buy, not the budget."""
MIDDLES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Of the bands; that of the publication is 0.35 to 0.65."""
HALF_BAND = 0.15
PUBLISHED = 0.5
PRICES_H_PER_USD = tuple(np.geomspace(0.002, 0.5, 9).tolist())


@dataclass(slots=True)
class Autoscaled:
    """Pollux on as many nodes as keep the utility of a slot in a band. `rented` has the nodes of every round."""

    name: ClassVar[str] = "pollux"
    middle: float
    rented: list[int] = field(default_factory=list)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        nodes = self.rented[-1] if self.rented else 1
        choices = self._on(given, solve, nodes)
        if abs(_utility(given, choices, nodes) - self.middle) > HALF_BAND:
            nodes, choices = self._nearest(given, solve)
        self.rented.append(nodes)
        return choices

    def _nearest(self, given: RoundInput, solve: Solve) -> tuple[int, Choices]:
        """The nodes whose utility is nearest to the middle; it falls with their number."""
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
        """Its choices where only so many nodes are there."""
        slots = dataclasses.replace(given.rows[0], capacity=float(nodes * NODE_SLOTS))
        return Pollux().choose(dataclasses.replace(given, rows=(slots, *given.rows[1:])), solve)


@dataclass(slots=True)
class Rented:
    """Any other policy, that rents the nodes which its choices need. `rented` has the nodes of every round."""

    policy: Policy
    rented: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """See `Policy.choose`."""
        choices = self.policy.choose(given, solve)
        self.rented.append(-(-int(_slots(given, choices.chosen).sum()) // NODE_SLOTS))
        return choices


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--workload", choices=WORKLOADS, default=WORKLOADS[0])
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    arguments = parser.parse_args()
    policies: list[Autoscaled | Rented] = [Autoscaled(middle) for middle in MIDDLES]
    policies += [Rented(Budget(mu_h_per_usd=price)) for price in PRICES_H_PER_USD]
    try:
        with ProcessPoolExecutor(max(arguments.processes, 1)) as pool:
            played = list(pool.map(partial(_played, arguments.workload), policies))
    except BadInput as missing:
        raise SystemExit(str(missing)) from missing
    result = _compared(played[: len(MIDDLES)], played[len(MIDDLES) :])
    print(json.dumps(result, indent=None if arguments.json else 2))


def _played(workload: str, policy: Autoscaled | Rented) -> dict[str, float]:
    """Dollars and hours of a stream under a policy. Raises BadInput where the measured data are not there."""
    kinds = (Kind(name="t4", node_slots=(NODE_SLOTS,) * NODES, usd_per_slot_h=1.0),)
    rules = Rules(view=View.ORACLE)
    found = replay(published_world(kinds, workload, rules, seed=0), policy)
    time_s = found.rounds.time_s
    # While there is no job there is no round, and nothing is rented.
    lengths_s = np.minimum(np.diff(time_s, append=found.end_s), rules.interval_s)
    usd = float(np.array(policy.rented) @ lengths_s) * NODE_SLOTS / 3600
    figures = summary(found)
    return {"usd": usd, "avg_jct_h": figures["avg_jct_h"], "p99_jct_h": figures["p99_jct_h"]}


def _compared(pollux: Sequence[dict[str, float]], budget: Sequence[dict[str, float]]) -> dict[str, Any]:
    by_usd = sorted(budget, key=lambda one: one["usd"])
    usd = np.array([one["usd"] for one in by_usd])
    hours = np.array([one["avg_jct_h"] for one in by_usd])
    points = []
    for middle, one in zip(MIDDLES, pollux, strict=True):
        reached = usd[0] <= one["usd"] <= usd[-1]
        same = float(np.exp(np.interp(np.log(one["usd"]), np.log(usd), np.log(hours)))) if reached else None
        points.append(
            {
                "middle": middle,
                "usd": one["usd"],
                "pollux_jct_h": one["avg_jct_h"],
                "budget_jct_h": same,
                "ratio": None if same is None else one["avg_jct_h"] / same,
            }
        )
    ratios = [point["ratio"] for point in points if point["ratio"] is not None]
    return {
        "ratio_least": min(ratios, default=None),
        "ratio_published": next(point["ratio"] for point in points if point["middle"] == PUBLISHED),
        "points": points,
        "budget_curve": [
            {"mu_h_per_usd": price, **one} for price, one in zip(PRICES_H_PER_USD, budget, strict=True)
        ],
    }


def _utility(given: RoundInput, choices: Choices, nodes: int) -> float:
    """Sum of speedups over one slot, by slot rented."""
    goodput = clean_goodput(given)
    one = np.where(given.configurations.slots == 1, goodput, 0.0).max(axis=1)
    has = (choices.chosen != NOTHING) & (one > 0)
    speedup = goodput[has, choices.chosen[has]] / one[has]
    return float(speedup.sum()) / (nodes * NODE_SLOTS)


def _slots(given: RoundInput, chosen: IntArray) -> FloatArray:
    """(J,) the slots of each choice."""
    return np.where(chosen != NOTHING, given.configurations.slots[chosen], 0).astype(np.float64)


if __name__ == "__main__":
    main()
