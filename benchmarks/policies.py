"""The league: all policies on the same streams of jobs, replayed on measured profiles in virtual time.

    python -m benchmarks.policies --json
    python -m benchmarks.policies --quick
    python -m benchmarks.policies --json --cluster homogeneous --workload philly-1 --policy goodput --policy sia

The profiles and streams are read from `HEADWAY_DATA`, else from `../shared/data` beside the repository.

The simulator (`service.simulation`) calls a policy as the service does. With `--view oracle`, the default, a policy sees the
true goodput of a job's present epoch, so that the league compares only policies. With `--view learned`, it sees an estimate
from noisy measurements of earlier steps.

There are two leagues. In `unknown`, the main one, no job says how long it is. In `known`, policies see the remaining work.
Policies that do not use lengths play only in the main one.

- `restart`: each policy at its published rhythm (`round_s`), and every change costs the application's measured restart.
  ONES, which was published with changes in place, pays 1 s. A size of ONES lasts an epoch, and one of Gavel a lease.
- `restart_events`: the same, with an additional round whenever a job is submitted or ends, as in Headway.
- `live`: such rounds, and a change of a running job costs 1 s. Starts cost as much as in `restart`.

Seeds move every submit by up to 15 minutes; seed 0 is the published stream. Constants of the policies were chosen with
`TRAINING_SEEDS` only. The default is `HELD_OUT_SEEDS`, with which nothing was chosen. Jobs and clusters are the same.

A row of `league` has the means over the seeds, and the values by seed in `avg_jct_h_by_seed`. `jct` are completion times, from
submit to end. `change_cost` is the cost of a change of a running job. `ratio_unknown_restart` and `ratio_unknown_live` are the
default's mean completion time over that of the better of `pollux` and `sia` with `restart`, in the worst world; `ratio_restart`
and `ratio_live` those of the known league. `p99_ratio_*` and `median_ratio_*` compare the 99th percentile and the median.
`*_restart_events` compare with `pollux` and `sia` with the same rounds as the default. `ratios` has all ratios by world.
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
from service.domain.policies.framework.policy import rhythm_of
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
QUICK_JOBS = 6
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
IN_PLACE_S = 1.0
"""Seconds of training that a change in place costs a policy that was published with such changes."""
PUBLISHED = ("pollux", "sia")
COMPARED = {
    "restart": tuple(POLICIES),
    EVENTS: (DEFAULT, *PUBLISHED),
    "live": (DEFAULT, *PUBLISHED, "elastic-dp"),
}
"""Compared policies by kind of resize. `live` has only policies that resize running jobs for gain."""
UNKNOWN, KNOWN = INFORMATION = ("unknown", "known")
WITHOUT_LENGTHS = frozenset({"elastic-dp", "elastic-fixed", "fair", "fifo", "gavel", "idle-fill", "las"})
"""Policies that do not use the length of jobs, and play only in the league of unknown lengths."""
TRAINING_SEEDS = (0, 1, 2)
"""Seeds with which constants of policies were chosen."""
HELD_OUT_SEEDS = (11, 12, 13)
"""Seeds with which nothing was chosen."""
MOVED_S = 900.0
KEY = ("information", "cluster", "workload", "resize", "round_s", "change_cost", "policy")
"""Columns of a row that say what was replayed."""
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
    information: str
    jobs: int | None = None
    """Number of jobs of the stream to replay; None means all."""
    mix: bool = False
    """True if every job may have slots of two kinds at once."""

    @property
    def rules(self) -> ClusterRules:
        """Rules of the cluster, at the published rhythm of the policy."""
        rules, rhythm = (
            dataclasses.replace(RESIZES[self.resize], view=self.view),
            rhythm_of(policy(self.policy)),
        )
        pause_s = IN_PLACE_S if rhythm.in_place else rules.live_pause_s
        return dataclasses.replace(rules, interval_s=rhythm.round_s, live_pause_s=pause_s)


def main() -> None:
    arguments = _parser().parse_args()
    league = []
    for row in _league(_matches(arguments), arguments.processes):
        league.append(row)
        if not arguments.json:
            key = " ".join(str(row[name]) for name in KEY)
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
    parser.add_argument(
        "--information", choices=INFORMATION, help="what policies know of lengths; default: both"
    )
    parser.add_argument(
        "--seed",
        action="append",
        type=int,
        help=f"may be repeated; default: {', '.join(map(str, HELD_OUT_SEEDS))}",
    )
    parser.add_argument("--view", type=View, choices=tuple(View), default=View.ORACLE)
    parser.add_argument("--processes", type=int, default=2, help="replays at a time; default: %(default)s")
    parser.add_argument("--mix", action="store_true", help="every job may have slots of two kinds at once")
    return parser


def _matches(arguments: argparse.Namespace) -> list[list[Match]]:
    """Return the requested replays: a list for each row, with a replay for each seed."""
    clusters = [arguments.cluster] if arguments.cluster else list(CLUSTERS)
    workloads = [arguments.workload] if arguments.workload else list(WORKLOADS)
    seeds = arguments.seed or HELD_OUT_SEEDS
    jobs, named = None, arguments.policy
    if arguments.quick:
        clusters, workloads, seeds = [QUICK], [WORKLOADS[0]], HELD_OUT_SEEDS[:1]
        jobs, named = QUICK_JOBS, (DEFAULT, *PUBLISHED)
    return [
        [
            Match(cluster, workload, resize, name, seed, arguments.view, information, jobs, arguments.mix)
            for seed in seeds
        ]
        for information in ([arguments.information] if arguments.information else INFORMATION)
        for cluster in clusters
        for workload in workloads
        for resize in ([arguments.resize] if arguments.resize else RESIZES)
        for name in (named or COMPARED[resize])
        if information == UNKNOWN or name not in WITHOUT_LENGTHS
    ]


def _league(rows: Sequence[Sequence[Match]], processes: int) -> Iterator[dict[str, Any]]:
    """Yield each row once all of its seeds are replayed.

    Only decision times depend on the number of processes.
    """
    with pool(processes) as workers:
        played = workers.map(figures, [match for row in rows for match in row])
        for row in rows:
            first, found = row[0], [next(played) for _ in row]
            rules = first.rules
            yield {
                "information": first.information,
                "cluster": first.cluster,
                "workload": first.workload,
                "resize": first.resize,
                "round_s": rules.interval_s,
                "change_cost": "restart" if rules.live_pause_s is None else f"{rules.live_pause_s:g} s",
                "policy": first.policy,
                "seeds": [one.seed for one in row],
                **{name: float(np.mean([one[name] for one in found])) for name in found[0]},
                "avg_jct_h_by_seed": [one["avg_jct_h"] for one in found],
            }


def figures(match: Match) -> dict[str, float]:
    """Return the figures of a replay.

    Raises:
        BadInput: the measured data are missing.
    """
    world = published_world(
        CLUSTERS[match.cluster],
        match.workload,
        match.rules,
        match.seed,
        lengths_known=match.information == KNOWN,
        jobs=match.jobs,
        mix=match.mix,
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
    mix: bool = False,
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
    return world_of_stream(kinds, file, stream, rules, seed=seed, lengths_known=lengths_known, mix=mix)


def world_of_stream(
    kinds: Sequence[Kind],
    file: Path,
    stream: Sequence[Submission],
    rules: ClusterRules,
    *,
    seed: int = 0,
    lengths_known: bool = True,
    mix: bool = False,
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
        mix=mix,
    )


def _ratios(league: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios of the default to the better one of the published policies, in the replayed worlds."""
    worlds: dict[str, dict[str, float]] = {}
    rows = {
        (f"{row['cluster']} {row['workload']}", row["information"], row["resize"], row["policy"]): row
        for row in league
    }
    for world, information, resize, name in rows:
        rhythm = EVENTS if resize == EVENTS else "restart"
        theirs = [
            rows[world, information, rhythm, one]
            for one in PUBLISHED
            if (world, information, rhythm, one) in rows
        ]
        if name == DEFAULT and theirs:
            of_world = worlds.setdefault(world, {})
            kind = resize if information == KNOWN else f"{UNKNOWN}_{resize}"
            for prefix, figure in (("", "avg_jct_h"), ("median_", "median_jct_h"), ("p99_", "p99_jct_h")):
                best = min(one[figure] for one in theirs)
                of_world[f"{prefix}ratio_{kind}"] = rows[world, information, resize, name][figure] / best
    names = sorted({name for of_world in worlds.values() for name in of_world})
    worst = {name: max(of_world[name] for of_world in worlds.values() if name in of_world) for name in names}
    return {**worst, "ratios": worlds}


if __name__ == "__main__":
    run_benchmark(main)
