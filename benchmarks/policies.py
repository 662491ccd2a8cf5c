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
from typing import Any

from benchmarks.replay.engine import Replay
from benchmarks.replay.metrics import Summary, summarise
from benchmarks.replay.profiles import NoData, data_folder
from benchmarks.replay.worlds import CLUSTERS, Rules, read_world
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.registry import POLICIES, policy

WORKLOADS = ("philly-1", "philly-2")
DEFAULT = "goodput"
PUBLISHED = ("pollux", "sia")
CHANGES = {"restart": Rules(), "live": Rules(live_pause_s=1.0, on_events=True)}


def main() -> None:
    arguments = _parser().parse_args()
    try:
        league = _league(arguments)
    except NoData as missing:
        raise SystemExit(str(missing)) from missing
    result = {**_ratios(league), "league": league}
    if arguments.json:
        print(json.dumps(result))
    else:
        _print(league)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--cluster", choices=tuple(CLUSTERS), help="default: both")
    parser.add_argument("--workload", choices=WORKLOADS, help="default: both")
    parser.add_argument("--changes", choices=tuple(CHANGES), help="default: both")
    parser.add_argument(
        "--policy", action="append", choices=tuple(POLICIES), help="may be repeated; default: all"
    )
    parser.add_argument(
        "--unknown-lengths", action="store_true", help="no job says how much work it has left"
    )
    return parser


def _league(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each world, way of changing and policy."""
    data = data_folder()
    rows = []
    for cluster in [arguments.cluster] if arguments.cluster else CLUSTERS:
        for workload in [arguments.workload] if arguments.workload else WORKLOADS:
            world = read_world(data, cluster, workload)
            for changes in [arguments.changes] if arguments.changes else CHANGES:
                rules = dataclasses.replace(CHANGES[changes], lengths_known=not arguments.unknown_lengths)
                for name in arguments.policy or POLICIES:
                    record = Replay(world, policy(name, {}), solve, rules, time.perf_counter).run()
                    figures = dataclasses.asdict(summarise(world, record))
                    key = {"cluster": cluster, "workload": workload, "changes": changes, "policy": name}
                    rows.append({**key, **figures})
    return rows


def _ratios(league: list[dict[str, Any]]) -> dict[str, float]:
    """The default's mean completion time over the better of the published policies with restarts, in the worst world;
    of those ways of changing that were replayed.
    """
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in league:
        world = found.setdefault((row["cluster"], row["workload"]), {})
        world[row["changes"], row["policy"]] = row["avg_jct_h"]
    ratios: dict[str, float] = {}
    for times_h in found.values():
        theirs_h = [times_h["restart", name] for name in PUBLISHED if ("restart", name) in times_h]
        for changes in CHANGES:
            if theirs_h and (changes, DEFAULT) in times_h:
                ratio = times_h[changes, DEFAULT] / min(theirs_h)
                ratios[f"ratio_{changes}"] = max(ratio, ratios.get(f"ratio_{changes}", 0.0))
    return ratios


def _print(league: list[dict[str, Any]]) -> None:
    figures = [field.name for field in dataclasses.fields(Summary)]
    world = None
    for row in league:
        if world != (world := (row["cluster"], row["workload"], row["changes"])):
            print("\n" + ", ".join(world))
            print(f"{'':12}" + "".join(f"{name:>16}" for name in figures))
        print(f"{row['policy']:12}" + "".join(f"{row[name]:16.3f}" for name in figures))


if __name__ == "__main__":
    main()
