"""Processor time of a whole scheduling decision on one core, from models to slots, at the sizes of four clusters.

    python -m benchmarks.allocation --json
    python -m benchmarks.allocation --jobs 1000 --slots 4096 --kinds 3 --json
    python -m benchmarks.allocation --quotas 50 --dollars --json
    python -m benchmarks.allocation --quick --json

The jobs' models have Pollux's form and scale well or badly, and every job may adapt its batch. Jobs ask for powers of two up
to a node of 8 slots, or for whole nodes up to 64. In total they ask for two to three times the available slots, and about
half of them hold slots. `--dollars` limits the dollars per hour to half of what all slots cost. `--quotas` sets the number of
projects, each with a quota of half to twice a fair share.

For each size:

- `tables_s`: goodput of all jobs in all configurations. `utility_s`: utilities of the default policy. `solve_s`: the solver.
  `gap` is its proven optimality gap; the required gap is 0 for up to 100 jobs, and 0.1 % for more. `place_s`: placement.
- `whole_s`: sum of these four.
- `round_s`: the same decision as the service makes it, from a snapshot to an action with a reason for every job. It includes
  the fit of all speeds, the masks and the messages. `round_gap` is the optimality gap of its solver.
- `levels_...`: the largest size once more, on nodes with labels of three topology levels. `levels_gap` and
  `levels_round_gap` must be at most 0.1 %. `levels_crossing` is the share of new placements on several nodes that cross a
  larger level than their size must.
- `peak_bytes`, `round_peak_bytes`: peak memory of the process, including Python and the synthetic input. Each of the two
  decisions is measured in its own process.

Times are seconds of processor time on one core: the median of `repeats` (for rounds: of 3, or a single one beyond 1,000
jobs). As in the service, the cycle collector is paused. With several sizes, the figures of the largest one are repeated at
the top. `growth` (`round_growth`) is the steepest slope of log(time) over log(jobs) between two neighbouring sizes: 1 is
linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np

from benchmarks.arguments import benchmark_parser, run_benchmark
from benchmarks.instances import Instance, make_instance
from benchmarks.snapshots import make_snapshot
from headway.contract.values.topology import LABEL_LEVELS, crossed_level, level_number
from service.domain.allocation.decision import plan
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import Problem, Solution
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.placement import Placement, PlacementStep, place_all
from service.domain.perf.tables import goodput_table
from service.domain.policies.registry import policy
from service.domain.shared.arrays import IntArray
from service.garbage import paused_collector

Result = TypeVar("Result")
Size: TypeAlias = tuple[int, int, int]
"""Number of jobs, slots and device kinds."""

SIZES: tuple[Size, ...] = ((64, 256, 3), (1_000, 4_096, 3), (10_000, 65_536, 5), (50_000, 250_000, 5))
QUICK_SIZES: tuple[Size, ...] = ((64, 256, 3), (256, 1_024, 3))
EXACT_UP_TO = 100
GAP = 1e-3
SEED = 0


class Stopwatch:
    """Processor seconds of each part and repeat."""

    def __init__(self) -> None:
        self._taken_s: dict[str, list[float]] = {}

    def time(self, part: str, work: Callable[[], Result]) -> Result:
        began = time.process_time()
        result = work()
        self._taken_s.setdefault(part, []).append(time.process_time() - began)
        return result

    def median_s(self, part: str) -> float:
        return round(statistics.median(self._taken_s[part]), 4)


def decide(instance: Instance, watch: Stopwatch) -> dict[str, float]:
    """Make one decision from models to slots, and return figures about its result."""
    table = watch.time("tables", lambda: goodput_table(instance.models, instance.given.configurations))
    given = instance.round_input(table.goodput)
    found: list[tuple[Problem, Solution]] = []
    gap = 0.0 if len(given.weight) <= EXACT_UP_TO else GAP

    def solve_timed(problem: Problem) -> Solution:
        solution = watch.time("solve", lambda: solve(problem, gap=gap))
        found.append((problem, solution))
        return solution

    choices = watch.time("choose", lambda: policy("goodput").choose(given, solve_timed))
    requests = instance.placement_requests(choices.chosen)
    crosses = given.configurations.crosses
    places = watch.time("place", lambda: place_all(requests, instance.pools))
    return {
        "gap": found[-1][1].gap,
        "configurations": len(given.configurations.slots),
        "rows": len(given.rows),
        "chosen": int((choices.chosen >= 0).sum()),
        "placed": sum(1 for place in places.values() if place.allocation),
        "stayed": sum(1 for place in places.values() if place.step is PlacementStep.STAY),
        **({} if crosses is None else {"crossing": _crossing(instance, places, choices.chosen)}),
    }


def _crossing(instance: Instance, places: Mapping[str, Placement], chosen: IntArray) -> float:
    """Return the share of the new placements on several nodes that cross a larger level than their size must."""
    crosses = instance.given.configurations.crosses
    assert crosses is not None, "the cluster has no levels"
    paths = {node: path for pool in instance.pools.values() for node, path in pool.paths.items()}
    several = beyond = 0
    for name, place in places.items():
        if len(place.allocation) > 1 and place.step is not PlacementStep.STAY:
            labels = [dict(zip(LABEL_LEVELS, paths[node], strict=True)) for node in place.allocation]
            several += 1
            beyond += level_number(crossed_level(labels)) > crosses[chosen[int(name.removeprefix("job-"))]]
    return round(beyond / max(several, 1), 4)


def measure(size: Size, quotas: int, dollars: bool, levels: bool) -> dict[str, float]:  # noqa: FBT001
    """Return the figures of one size, measured in this process on one core."""
    instance = _warm_instance(size, quotas, dollars, levels)
    repeats = _repeats(size)
    watch = Stopwatch()
    for _ in range(repeats):
        with paused_collector():
            facts = decide(instance, watch)
    parts = {
        "tables_s": watch.median_s("tables"),
        "utility_s": round(watch.median_s("choose") - watch.median_s("solve"), 4),
        "solve_s": watch.median_s("solve"),
        "place_s": watch.median_s("place"),
    }
    return {
        **parts,
        "whole_s": round(sum(parts.values()), 4),
        "peak_bytes": _peak_bytes(),
        "repeats": repeats,
        **facts,
    }


def measure_round(size: Size, quotas: int, dollars: bool, levels: bool) -> dict[str, float]:  # noqa: FBT001
    """Return the figures of one round of the service, measured in this process on one core."""
    snapshot = make_snapshot(_warm_instance(size, quotas, dollars, levels))
    gap = 0.0 if size[0] <= EXACT_UP_TO else GAP
    watch = Stopwatch()
    for _ in range(3 if size[0] <= 1_000 else 1):
        with paused_collector():
            made = watch.time(
                "round",
                lambda: plan.decide(build_round(snapshot), policy("goodput"), partial(solve, gap=gap)),
            )
    return {
        "round_s": watch.median_s("round"),
        "round_gap": made.solution.gap,
        "round_peak_bytes": _peak_bytes(),
    }


def growth(taken_s: Mapping[int, float]) -> float | None:
    """Return the steepest slope of log(seconds) over log(jobs) between two neighbouring sizes; None for one size."""
    sizes = sorted(taken_s)
    slopes = [
        math.log(taken_s[large] / taken_s[small]) / math.log(large / small)
        for small, large in pairwise(sizes)
    ]
    return round(max(slopes), 3) if slopes else None


def _warm_instance(size: Size, quotas: int, dollars: bool, levels: bool) -> Instance:  # noqa: FBT001
    """Return the instance, after a small decision as a warm-up, so that imports and caches do not count."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    decide(make_instance(16, 64, 2, seed=SEED, quotas=0, dollars=False), Stopwatch())
    return make_instance(*size, seed=SEED, quotas=quotas, dollars=dollars, levels=levels)


def _repeats(size: Size) -> int:
    return 7 if size[0] <= 1_000 else 3


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_all(
    sizes: Sequence[Size],
    quotas: int,
    dollars: bool,  # noqa: FBT001
    levels: bool = False,  # noqa: FBT001, FBT002
) -> dict[Size, dict[str, float]]:
    """Return the figures of every size, measured in one process after the other."""
    spawn = multiprocessing.get_context("spawn")
    results: dict[Size, dict[str, float]] = {}
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for size in sizes:
            parts = [processes.submit(one, size, quotas, dollars, levels) for one in (measure, measure_round)]
            results[size] = {name: value for part in parts for name, value in part.result().items()}
    return results


def main() -> None:
    arguments = _parser().parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    sizes = QUICK_SIZES if arguments.quick else SIZES
    if arguments.jobs is not None:
        sizes = ((arguments.jobs, arguments.slots, arguments.kinds),)
    results = measure_all(sizes, arguments.quotas, arguments.dollars)
    of_levels = measure_all([max(sizes)], arguments.quotas, arguments.dollars, levels=True)[max(sizes)]
    levels = {f"levels_{name}": value for name, value in of_levels.items()}
    by_name = {"x".join(map(str, size)): figures for size, figures in results.items()}
    slopes = {
        name: growth({size[0]: figures[of] for size, figures in results.items()})
        for name, of in (("growth", "whole_s"), ("round_growth", "round_s"))
    }
    machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
    machine["numpy"] = np.__version__
    if arguments.json:
        largest = results[max(sizes)]
        several = {"sizes": by_name} if arguments.jobs is None else {}
        print(json.dumps({**several, **largest, **levels, **slopes, "machine": machine}))
        return
    for name, figures in by_name.items():
        print(name, *(f"{key} {value:.6g}" for key, value in figures.items()), sep="  ")
    print(*(f"{key} {value:.6g}" for key, value in levels.items()), sep="  ")
    print(*(f"{key} {value}" for key, value in slopes.items()), sep="  ")


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser(__doc__, quick="a few hundred jobs")
    parser.add_argument("--jobs", type=int, help="default: the four standard sizes")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--kinds", type=int, default=3)
    parser.add_argument("--quotas", type=int, default=0, help="projects with a quota")
    parser.add_argument("--dollars", action="store_true", help="bound the dollars per hour")
    return parser


if __name__ == "__main__":
    run_benchmark(main)
