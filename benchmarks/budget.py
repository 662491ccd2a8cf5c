"""Spending of the budget policy over days of a published stream, compared with its long-run budget.

    python -m benchmarks.budget --json

The two published streams alternate, eight hours each, for four days: 1,920 jobs, with a calm and a busy period in each eight
hours. The policy starts without knowledge of the stream. Its budget limits the mean of the dollars per hour, on at most 256 slots
at a dollar per hour each. Changes are live, and rounds also run on events.

`worst_error` is the largest |spent / budget - 1| over the budgets. `points` has the figures of each budget. Among them,
`mu_jct_h` is the mean completion time with a fixed price of delay that spends the same. Only a policy that knows the stream
in advance could choose this price.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.arguments import benchmark_parser, pool, run_benchmark, show
from benchmarks.budget_curve import KINDS, hours_for
from benchmarks.policies import RESIZES, WORKLOADS, world_of_stream
from service.domain.policies.budget import BudgetPolicy
from service.simulation.inputs.streams import read_stream
from service.simulation.model.profiles import data_folder
from service.simulation.model.world import View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary

BUDGETS_USD_PER_H = (120.0, 135.0, 156.0, 180.0)
PRICES_H_PER_USD = (0.01, 0.02, 0.04, 0.09, 0.2, 0.5)
WINDOWS = 12
WINDOW_S = 8 * 3600.0


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one window of eight hours, one budget and two prices")
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    arguments = parser.parse_args()
    windows = 1 if arguments.quick else WINDOWS
    budgets = BUDGETS_USD_PER_H[:1] if arguments.quick else BUDGETS_USD_PER_H
    prices = PRICES_H_PER_USD[-2:] if arguments.quick else PRICES_H_PER_USD
    policies = [BudgetPolicy(usd_per_h=budget) for budget in budgets]
    policies += [BudgetPolicy(mu_h_per_usd=price) for price in prices]
    with pool(arguments.processes) as workers:
        played = list(workers.map(partial(_replay_figures, windows), policies))
    result = _compare(budgets, played[: len(budgets)], played[len(budgets) :])
    show(result, arguments)


def _days(windows: int) -> World:
    """Return the world of all windows.

    Raises:
        BadInput: the measured data are missing.
    """
    jobs = []
    for window in range(windows):
        file = data_folder() / "workloads" / f"{WORKLOADS[window % len(WORKLOADS)]}.csv"
        jobs += [
            dataclasses.replace(job, id=f"{window}/{job.id}", submit_s=window * WINDOW_S + job.submit_s)
            for job in read_stream(file)
        ]
    rules = dataclasses.replace(RESIZES["live"], view=View.ORACLE)
    return world_of_stream(KINDS, file, sorted(jobs, key=lambda job: job.submit_s), rules)


def _replay_figures(windows: int, policy: BudgetPolicy) -> dict[str, float]:
    found = replay(_days(windows), policy)
    figures = summary(found)
    return {
        "usd_per_h": figures["usd"] / (found.end_s / 3600),
        "jct_h": figures["avg_jct_h"],
        "changes": figures["changes"],
    }


def _compare(
    budgets: Sequence[float], kept: list[dict[str, float]], fixed: list[dict[str, float]]
) -> dict[str, Any]:
    curve = [(one["usd_per_h"], one["jct_h"]) for one in fixed]
    points = [
        {
            "budget_usd_per_h": budget,
            "spent_usd_per_h": one["usd_per_h"],
            "error": one["usd_per_h"] / budget - 1.0,
            "jct_h": one["jct_h"],
            "mu_jct_h": hours_for(curve, one["usd_per_h"]),
            "changes": one["changes"],
        }
        for budget, one in zip(budgets, kept, strict=True)
    ]
    return {
        "worst_error": max(
            abs(one["usd_per_h"] / budget - 1.0) for budget, one in zip(budgets, kept, strict=True)
        ),
        "points": points,
    }


if __name__ == "__main__":
    run_benchmark(main)
