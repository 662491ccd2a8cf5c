"""How long a whole decision takes on one core, from models to slots, at the sizes of four clusters.

    python -m benchmarks.allocation --json
    python -m benchmarks.allocation --jobs 1000 --slots 4096 --kinds 3 --json
    python -m benchmarks.allocation --quotas 50 --dollars --json

The jobs' models are of Pollux's form and scale well or badly; every job may adapt its batch. Jobs want powers of two up
to a node of 8 slots and whole nodes up to 64, and two to three times more than there is; about half of them hold slots.
`--dollars`: dollars per hour bound the choice at half of what all slots cost. `--quotas`: so many projects, whose quotas
are half to twice a fair share each.

`tables_s`: goodput of all jobs in all configurations. `utility_s`: what the default policy makes of it. `solve_s`: the
solver; `gap` is what it proves, and 0 is asked for at up to 100 jobs, 0.1 % beyond. `place_s`: from counts to slots.
Seconds of processor time, the median of `repeats`; `peak_mb` is the largest size of the process, all of Python included.
Each size is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import numpy as np

from benchmarks.instances import Instance, make_instance
from service.domain.allocation.knapsack.problem import Problem, Solution
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement import Step, place_all
from service.domain.perf.tables import goodput_table
from service.domain.policies.registry import policy

Result = TypeVar("Result")

SIZES = ((64, 256, 3), (1_000, 4_096, 3), (10_000, 65_536, 5), (50_000, 250_000, 5))
EXACT_UP_TO = 100
GAP = 1e-3
SEED = 0


class Stopwatch:
    """Processor seconds of each part, of every repeat."""

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
    """One decision from models to slots, and what came of it."""
    table = watch.time("tables", lambda: goodput_table(instance.models, instance.given.configurations))
    given = instance.round_input(table.goodput)
    found: list[tuple[Problem, Solution]] = []
    gap = 0.0 if len(given.weight) <= EXACT_UP_TO else GAP

    def solve_timed(problem: Problem) -> Solution:
        solution = watch.time("solve", lambda: solve(problem, gap=gap))
        found.append((problem, solution))
        return solution

    choices = watch.time("choose", lambda: policy("goodput").choose(given, solve_timed))
    wants = instance.wants(choices.chosen)
    places = watch.time("place", lambda: place_all(wants, instance.pools))
    return {
        "gap": found[-1][1].gap,
        "configurations": len(given.configurations.slots),
        "rows": len(given.rows),
        "chosen": int((choices.chosen >= 0).sum()),
        "placed": sum(1 for place in places.values() if place.allocation),
        "stayed": sum(1 for place in places.values() if place.step is Step.STAY),
    }


def measure(size: tuple[int, int, int], quotas: int, dollars: bool) -> dict[str, float]:  # noqa: FBT001
    """The figures of one size, in this process, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    decide(make_instance(16, 64, 2, seed=SEED, quotas=0, dollars=False), Stopwatch())
    instance = make_instance(*size, seed=SEED, quotas=quotas, dollars=dollars)
    repeats = 7 if size[0] <= 1_000 else 3
    watch = Stopwatch()
    for _ in range(repeats):
        facts = decide(instance, watch)
    return {
        "tables_s": watch.median_s("tables"),
        "utility_s": round(watch.median_s("choose") - watch.median_s("solve"), 4),
        "solve_s": watch.median_s("solve"),
        "place_s": watch.median_s("place"),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "repeats": repeats,
        **facts,
    }


def main() -> None:
    arguments = _parser().parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    chosen = (arguments.jobs, arguments.slots, arguments.kinds)
    sizes = SIZES if arguments.jobs is None else (chosen,)
    results = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for size in sizes:
            measured = processes.submit(measure, size, arguments.quotas, arguments.dollars)
            results["x".join(map(str, size))] = measured.result()
    machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
    machine["numpy"] = np.__version__
    if arguments.json:
        flat = next(iter(results.values())) if arguments.jobs is not None else {"sizes": results}
        print(json.dumps({**flat, "machine": machine}))
        return
    for name, figures in results.items():
        print(name, *(f"{key} {value:.6g}" for key, value in figures.items()), sep="  ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--jobs", type=int, help="default: the four standard sizes")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--kinds", type=int, default=3)
    parser.add_argument("--quotas", type=int, default=0, help="projects with a quota")
    parser.add_argument("--dollars", action="store_true", help="bound the dollars per hour")
    return parser


if __name__ == "__main__":
    main()
