"""Every policy over the same streams of jobs, replayed on measured profiles in virtual time.

    python -m benchmarks.policies --json
    python -m benchmarks.policies --json --cluster homogeneous --workload philly-1 --policy goodput --policy sia

The profiles and streams are read from `HEADWAY_DATA`, else from `../shared/data` beside the repository.

A policy is called as the service calls it: arrays in, the shared solver, choices out. It sees the true goodput of the
epoch that a job is in, for all configurations, with the best batch in each; and how much work is left, unless
`--unknown-lengths`. `restart`: rounds every 60 s, every change costs the application's measured restart. `live`: a
change of a running job costs 1 s, and there is also a round whenever a job comes or ends; starts from nothing cost as
much as before. `jct` are completion times, from submit to end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.replay.engine import Replay
from benchmarks.replay.metrics import summarise
from benchmarks.replay.profiles import NoData, data_folder
from benchmarks.replay.worlds import CLUSTERS, Rules, read_world
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.registry import POLICIES, policy

WORKLOADS = ("philly-1", "philly-2")
DEFAULT = "goodput"
PUBLISHED = ("pollux", "sia")
FIGURES = (
    "avg_jct_h",
    "p99_jct_h",
    "makespan_h",
    "gpu_h",
    "worst_fairness",
    "changes",
    "unfinished",
    "decision_p95_ms",
)
RESIZES = {"restart": Rules(), "live": Rules(live_pause_s=1.0, on_events=True)}


def main() -> None:
    arguments = _parser().parse_args()
    try:
        data = data_folder()
    except NoData as missing:
        raise SystemExit(str(missing)) from missing
    league = []
    for row in _league(arguments, data):
        league.append(row)
        if not arguments.json:
            _print(row)
    ratios = _ratios(league)
    print(json.dumps({**ratios, "league": league}) if arguments.json else json.dumps(ratios, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--cluster", choices=tuple(CLUSTERS), help="default: both")
    parser.add_argument("--workload", choices=WORKLOADS, help="default: both")
    parser.add_argument("--resize", choices=tuple(RESIZES), help="default: both")
    parser.add_argument(
        "--policy", action="append", choices=tuple(POLICIES), help="may be repeated; default: all"
    )
    parser.add_argument(
        "--unknown-lengths", action="store_true", help="no job says how much work it has left"
    )
    return parser


def _league(arguments: argparse.Namespace, data: Path) -> Iterator[dict[str, Any]]:
    """One row for each world, way of resizing and policy."""
    for cluster in [arguments.cluster] if arguments.cluster else CLUSTERS:
        for workload in [arguments.workload] if arguments.workload else WORKLOADS:
            world = read_world(data, cluster, workload)
            for resize in [arguments.resize] if arguments.resize else RESIZES:
                rules = dataclasses.replace(RESIZES[resize], lengths_known=not arguments.unknown_lengths)
                for name in arguments.policy or POLICIES:
                    record = Replay(world, policy(name), solve, rules, time.perf_counter).run()
                    figures = dataclasses.asdict(summarise(world, record))
                    key = {"cluster": cluster, "workload": workload, "resize": resize, "policy": name}
                    yield {**key, **figures}


def _ratios(league: list[dict[str, Any]]) -> dict[str, float]:
    """The default's mean completion time over the better of the published policies with restarts, in the worst world;
    of those ways of resizing that were replayed.
    """
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in league:
        world = found.setdefault((row["cluster"], row["workload"]), {})
        world[row["resize"], row["policy"]] = row["avg_jct_h"]
    ratios: dict[str, float] = {}
    for times_h in found.values():
        theirs_h = [times_h["restart", name] for name in PUBLISHED if ("restart", name) in times_h]
        for resize in RESIZES:
            if theirs_h and (resize, DEFAULT) in times_h:
                ratio = times_h[resize, DEFAULT] / min(theirs_h)
                ratios[f"ratio_{resize}"] = max(ratio, ratios.get(f"ratio_{resize}", 0.0))
    return ratios


def _print(row: dict[str, Any]) -> None:
    figures = "  ".join(f"{name} {row[name]:.3g}" for name in FIGURES)
    print(f"{row['cluster']:13} {row['workload']} {row['resize']:7} {row['policy']:10} {figures}", flush=True)


if __name__ == "__main__":
    main()
