"""The league: all policies on the same streams of jobs, replayed on measured profiles in virtual time.

    python -m benchmarks.policies --json
    python -m benchmarks.policies --quick
    python -m benchmarks.policies --json --cluster homogeneous --workload philly-1 --policy goodput --policy sia

The profiles and streams are read from `HEADWAY_DATA`, else from `../shared/data` beside the repository.

The simulator (`service.simulation`) calls a policy as the service does. With `--view oracle`, the default, a policy sees the
true goodput of a job's present epoch, so that the league compares only policies. With `--view learned`, it sees an estimate
from noisy measurements of earlier steps. It sees the remaining work, unless `--unknown-lengths` is set.

- `restart`: rounds every 60 s, and every change costs the application's measured restart.
- `restart_events`: the same, with an additional round whenever a job is submitted or ends, as in Headway.
- `live`: such rounds, and a change of a running job costs 1 s. Starts cost as much as in `restart`.

The first seed is the published stream. With the others every submit is moved by up to 15 minutes, to separate differences
between policies from chance.

A row of `league` has the means over the seeds, and the values by seed in `avg_jct_h_by_seed`. `jct` are completion times, from
submit to end. `ratio_restart` and `ratio_live` are the default's mean completion time over that of the better of `pollux` and
`sia` with `restart`, in the worst world. `p99_ratio_*` are the same ratios of the 99th percentile. `ratio_restart_events`
compares with `pollux` and `sia` with the same rounds as the default. `ratios` has all ratios by world.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import benchmark_parser, pool, run_benchmark
from service.domain.policies.registry import DEFAULT, POLICIES, policy
from service.simulation.inputs.reading import world_of
from service.simulation.inputs.streams import Submission, read_stream
from service.simulation.model.laws import amdahl
from service.simulation.model.profiles import data_folder
from service.simulation.model.world import ClusterRules, Kind, View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary

QUICK = "homogeneous"
"""Cluster of a quick run."""
QUICK_JOBS = 20
WORKLOADS = ("philly-1", "philly-2")
CLUSTERS = {
    "homogeneous": (Kind(name="t4", node_slots=(4,) * 16, usd_per_slot_h=1.0),),
    "heterogeneous": (
        Kind(name="t4", node_slots=(4,) * 6, usd_per_slot_h=1.0),
        Kind(name="rtx2080ti", node_slots=(8,) * 3, usd_per_slot_h=1.6),
        Kind(name="a100", node_slots=(8,) * 2, usd_per_slot_h=4.0),
    ),
}
"""Clusters of the published simulations, with 64 slots each. Prices are proportional to those of clouds."""
EVENTS = "restart_events"
RESIZES = {
    "restart": ClusterRules(),
    EVENTS: ClusterRules(on_events=True),
    "live": ClusterRules(live_pause_s=1.0, on_events=True),
}
PUBLISHED = ("pollux", "sia")
COMPARED = {
    "restart": tuple(POLICIES),
    EVENTS: (DEFAULT, *PUBLISHED),
    "live": (DEFAULT, *PUBLISHED, "elastic-dp"),
}
"""Compared policies by kind of resize. `live` has only policies that resize running jobs for gain."""
SEEDS = 3
MOVED_S = 900.0
SHOWN = (
    "avg_jct_h",
    "median_jct_h",
    "p99_jct_h",
    "makespan_h",
    "gpu_h",
    "worst_fairness",
    "changes",
    "unfinished",
)


@dataclass(frozen=True, slots=True)
class Match:
    """Replay of the league."""

    cluster: str
    workload: str
    resize: str
    policy: str
    seed: int
    view: View
    lengths_known: bool
    jobs: int | None = None
    """Number of jobs of the stream to replay; None means all."""


def main() -> None:
    arguments = _parser().parse_args()
    league = []
    for row in _league(_matches(arguments), arguments.processes):
        league.append(row)
        if not arguments.json:
            key = f"{row['cluster']:13} {row['workload']} {row['resize']:14} {row['policy']:10}"
            print(key, *(f" {name} {row[name]:.3g}" for name in SHOWN), flush=True)
    ratios = _ratios(league)
    print(json.dumps({**ratios, "league": league}) if arguments.json else json.dumps(ratios, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser(__doc__, quick="three policies on one stream, once")
    parser.add_argument("--cluster", choices=tuple(CLUSTERS), help="default: both")
    parser.add_argument("--workload", choices=WORKLOADS, help="default: both")
    parser.add_argument("--resize", choices=tuple(RESIZES), help="default: all")
    parser.add_argument(
        "--policy", action="append", choices=tuple(POLICIES), help="may be repeated; default: all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="default: %(default)s")
    parser.add_argument("--view", type=View, choices=tuple(View), default=View.ORACLE)
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    parser.add_argument(
        "--unknown-lengths", action="store_true", help="no job says how much work it has left"
    )
    return parser


def _matches(arguments: argparse.Namespace) -> list[list[Match]]:
    """Return the requested replays: a list for each row, with a replay for each seed."""
    if arguments.quick:
        return [
            [
                Match(
                    QUICK,
                    WORKLOADS[0],
                    resize,
                    name,
                    0,
                    arguments.view,
                    not arguments.unknown_lengths,
                    QUICK_JOBS,
                )
            ]
            for resize in RESIZES
            for name in (DEFAULT, *PUBLISHED)
            if name in COMPARED[resize]
        ]
    named = arguments.policy
    seeds = range(max(arguments.seeds, 1))
    return [
        [
            Match(cluster, workload, resize, name, seed, arguments.view, not arguments.unknown_lengths)
            for seed in seeds
        ]
        for cluster in ([arguments.cluster] if arguments.cluster else CLUSTERS)
        for workload in ([arguments.workload] if arguments.workload else WORKLOADS)
        for resize in ([arguments.resize] if arguments.resize else RESIZES)
        for name in (named or COMPARED[resize])
    ]


def _league(rows: Sequence[Sequence[Match]], processes: int) -> Iterator[dict[str, Any]]:
    """Yield each row once all of its seeds are replayed.

    Only decision times depend on the number of processes.
    """
    with pool(processes) as workers:
        played = workers.map(figures, [match for row in rows for match in row])
        for row in rows:
            first, found = row[0], [next(played) for _ in row]
            yield {
                "cluster": first.cluster,
                "workload": first.workload,
                "resize": first.resize,
                "policy": first.policy,
                "seeds": len(row),
                **{name: float(np.mean([one[name] for one in found])) for name in found[0]},
                "avg_jct_h_by_seed": [one["avg_jct_h"] for one in found],
            }


def figures(match: Match) -> dict[str, float]:
    """Return the figures of a replay.

    Raises:
        BadInput: the measured data are missing.
    """
    rules = dataclasses.replace(RESIZES[match.resize], view=match.view)
    world = published_world(
        CLUSTERS[match.cluster],
        match.workload,
        rules,
        match.seed,
        lengths_known=match.lengths_known,
        jobs=match.jobs,
    )
    return summary(replay(world, policy(match.policy)))


def published_world(
    kinds: Sequence[Kind],
    workload: str,
    rules: ClusterRules,
    seed: int,
    *,
    lengths_known: bool = True,
    jobs: int | None = None,
) -> World:
    """Return the world of a published stream, or of its first `jobs`. A seed other than 0 moves each submit.

    Raises:
        BadInput: the measured data are missing.
    """
    file = data_folder() / "workloads" / f"{workload}.csv"
    stream = read_stream(file)[:jobs]
    if seed:
        moved_s = np.random.default_rng(seed).uniform(-MOVED_S, MOVED_S, len(stream))
        stream = tuple(
            sorted(
                (
                    dataclasses.replace(job, submit_s=max(job.submit_s + by_s, 0.0))
                    for job, by_s in zip(stream, moved_s.tolist(), strict=True)
                ),
                key=lambda job: job.submit_s,
            )
        )
    return world_of_stream(kinds, file, stream, rules, seed=seed, lengths_known=lengths_known)


def world_of_stream(
    kinds: Sequence[Kind],
    file: Path,
    stream: Sequence[Submission],
    rules: ClusterRules,
    *,
    seed: int = 0,
    lengths_known: bool = True,
) -> World:
    """Return the world of these jobs with the measured profiles. `file` is named in errors.

    Raises:
        BadInput: the measured data are missing.
    """
    return world_of(
        file,
        tuple(stream),
        kinds,
        law=amdahl(1.0),  # for jobs without a profile; these streams have none
        profiles=data_folder() / "profiles",
        rules=rules,
        seed=seed,
        declares_length=lengths_known,
    )


def _ratios(league: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios of the default to the better one of the published policies, in the replayed worlds."""
    worlds: dict[str, dict[str, float]] = {}
    rows = {(f"{row['cluster']} {row['workload']}", row["resize"], row["policy"]): row for row in league}
    for world, resize, name in rows:
        rhythm = EVENTS if resize == EVENTS else "restart"
        theirs = [rows[world, rhythm, one] for one in PUBLISHED if (world, rhythm, one) in rows]
        if name == DEFAULT and theirs:
            of_world = worlds.setdefault(world, {})
            for prefix, figure in (("", "avg_jct_h"), ("median_", "median_jct_h"), ("p99_", "p99_jct_h")):
                best = min(one[figure] for one in theirs)
                of_world[f"{prefix}ratio_{resize}"] = rows[world, resize, name][figure] / best
    names = sorted({name for of_world in worlds.values() for name in of_world})
    worst = {name: max(of_world[name] for of_world in worlds.values()) for name in names}
    return {**worst, "ratios": worlds}


if __name__ == "__main__":
    run_benchmark(main)
