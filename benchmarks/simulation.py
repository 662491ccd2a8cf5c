"""How fast the simulator is on one core, with the default policy.

    python -m benchmarks.simulation --json
    python -m benchmarks.simulation --json --jobs 8000

`workload_s`: the 160 jobs of philly-1 on 64 t4, where the policy sees what was learned. `trace_s` and `trace_mib`: the
first jobs of philly.csv (all of them unless `--jobs`) on 2,500 slots, with a speedup law and its truth, a round every
300 s. Seconds of processor time; memory is the most that the program ever had.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

from service.domain.policies.registry import DEFAULT, policy
from service.simulation.engine import replay
from service.simulation.inputs import world_of
from service.simulation.laws import LawOfJobs, power
from service.simulation.profiles import data_folder
from service.simulation.streams import read_stream
from service.simulation.world import BadInput, Kind, Rules, View, World

LAW = LawOfJobs(law=power(0.8))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--jobs", type=int, help="only so many of the trace")
    arguments = parser.parse_args()
    try:
        data = data_folder()
        figures = {
            "workload_s": _seconds(_workload(data)),
            "trace_s": _seconds(_trace(data, arguments.jobs)),
            "trace_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    except BadInput as wrong:
        raise SystemExit(str(wrong)) from wrong
    print(json.dumps(figures, indent=None if arguments.json else 2))


def _workload(data: Path) -> World:
    file = data / "workloads" / "philly-1.csv"
    kinds = (Kind(name="t4", node_slots=(4,) * 16),)
    return world_of(file, read_stream(file), kinds, law=LAW, profiles=data / "profiles")


def _trace(data: Path, jobs: int | None) -> World:
    file = data / "arrivals" / "philly.csv"
    kinds = (Kind(name="gpu", node_slots=(*(8,) * 312, 4)),)
    rules = Rules(interval_s=300.0, view=View.ORACLE)
    return world_of(file, read_stream(file)[:jobs], kinds, law=LAW, rules=rules)


def _seconds(world: World) -> float:
    """Of processor time, for a replay."""
    began_s = time.process_time()
    replay(world, policy(DEFAULT))
    return time.process_time() - began_s


if __name__ == "__main__":
    main()
