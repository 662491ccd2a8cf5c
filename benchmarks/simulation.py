"""Speed of the simulator on one core, with the default policy.

    python -m benchmarks.simulation --json
    python -m benchmarks.simulation --json --jobs 8000

`workload_s`: the 160 jobs of philly-1 on 64 t4, with learned models.
`trace_s`, `trace_mib`: all jobs of philly.csv, or the first `--jobs`, on 2,500 slots, with a known speedup law and a round
every 300 s.

Times are seconds of processor time. The memory is the peak of the whole program.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, show
from service.domain.policies.registry import DEFAULT, policy
from service.simulation.inputs.reading import world_of
from service.simulation.inputs.streams import read_stream
from service.simulation.model.laws import power
from service.simulation.model.profiles import data_folder
from service.simulation.model.world import ClusterRules, Kind, View, World
from service.simulation.replay.engine import replay

LAW = power(0.8)

QUICK_JOBS = 40


def main() -> None:
    parser = benchmark_parser(__doc__, quick="the first jobs of the trace")
    parser.add_argument("--jobs", type=int, help="replay only the first jobs of the trace")
    arguments = parser.parse_args()
    data = data_folder()
    figures = {
        "workload_s": _seconds(_workload(data, QUICK_JOBS if arguments.quick else None)),
        "trace_s": _seconds(_trace(data, QUICK_JOBS if arguments.quick else arguments.jobs)),
        "trace_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    show(figures, arguments)


def _workload(data: Path, jobs: int | None) -> World:
    file = data / "workloads" / "philly-1.csv"
    kinds = (Kind(name="t4", node_slots=(4,) * 16),)
    return world_of(file, read_stream(file)[:jobs], kinds, law=LAW, profiles=data / "profiles")


def _trace(data: Path, jobs: int | None) -> World:
    file = data / "arrivals" / "philly.csv"
    kinds = (Kind(name="gpu", node_slots=(*(8,) * 312, 4)),)
    rules = ClusterRules(interval_s=300.0, view=View.ORACLE)
    return world_of(file, read_stream(file)[:jobs], kinds, law=LAW, rules=rules)


def _seconds(world: World) -> float:
    """Return the processor seconds of a replay."""
    began_s = time.process_time()
    replay(world, policy(DEFAULT))
    return time.process_time() - began_s


if __name__ == "__main__":
    run_benchmark(main)
