"""Command-line program `python -m service.simulation`, which `headway simulate` runs.

It reads files and writes a folder with a report. Exit codes: 0 for success; 2 for invalid input or a
policy that fails, with one sentence on stderr; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headway.streams import make_streams_tolerant
from service.domain.policies.framework.checked import PolicyFailed
from service.domain.policies.framework.policy import Policy
from service.domain.policies.registry import DEFAULT, Policies
from service.domain.shared.errors import InvalidField
from service.environment import SettingsError
from service.plugins import installed_policies
from service.simulation.inputs.reading import world_of
from service.simulation.inputs.streams import read_stream
from service.simulation.model.clusters import read_cluster
from service.simulation.model.laws import law_of
from service.simulation.model.world import BadInput, ClusterRules, View, World
from service.simulation.replay.metrics import summary
from service.simulation.report.page import render
from service.simulation.report.results import REPORT, ReplayResult, Results, check_folder, write
from service.simulation.sweep import Engine, sweep

_LIVE_PAUSE_S = 1.0
"""Pause in seconds of a change in place; docs/benchmarks.md has the measurements."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    make_streams_tolerant()
    arguments = _parser().parse_args(argv)
    try:
        policies = _policies(arguments.policy, installed_policies())
        check_folder(arguments.out)
        world = _world(arguments)
        results = _simulated(world, policies, arguments)
        write(arguments.out, results, render(results))
    except (BadInput, PolicyFailed, SettingsError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{arguments.out / REPORT}\n")
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write(why + "\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m service.simulation", description="Replay jobs against policies in virtual time."
    )
    add = parser.add_argument
    add("--jobs", type=Path, required=True, metavar="FILE", help="job stream (CSV)")
    add("--cluster", type=Path, required=True, metavar="FILE", help="nodes of the cluster (YAML)")
    add(
        "--policy",
        default=f"{DEFAULT},fifo",
        metavar="A,B,C",
        help="policies: NAME or NAME:KEY=VALUE, or all",
    )
    add(
        "--seeds",
        type=_count,
        default=1,
        metavar="N",
        help="number of seeds of measurement noise and failures",
    )
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument("--live-resize", action="store_true", help="running jobs change in place")
    changes.add_argument(
        "--restart", dest="live_resize", action="store_false", help="running jobs change by a restart"
    )
    add("--law", default="power:0.8", help="speedup of jobs without profiles: amdahl:PART, power:EXPONENT")
    add(
        "--profiles",
        type=Path,
        metavar="DIR",
        help="folder of measured profiles, with a folder for each application",
    )
    add("--interval", type=_positive, default=60.0, metavar="S", help="seconds between two rounds")
    add("--failures", type=_rate, default=0.0, metavar="RATE", help="failures of a node per hour")
    add("--oracle", action="store_true", help="policies see true speeds instead of learned ones")
    add("--unknown-lengths", action="store_true", help="policies do not know the remaining work of jobs")
    add("--out", type=Path, default=Path("simulation"), metavar="DIR", help="folder for the results")
    add("--parallel", type=_count, default=1, metavar="N", help="number of replays in parallel")
    add(
        "--engine",
        type=Engine,
        default=Engine.PROCESSES,
        choices=tuple(Engine),
        help="engine that runs the replays",
    )
    add("--progress", action="store_true", help="write the share of work done to stderr as JSON lines")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _positive(text: str) -> float:
    value = _rate(text)
    if value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _policies(text: str, known: Policies) -> dict[str, Policy]:
    """Return the policies by the text that requested them, which is their name in the results. Raise BadInput."""
    asked = list(known) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not asked:
        raise BadInput("--policy names no policy")
    return {one: _policy(one, known) for one in asked}


def _policy(text: str, known: Policies) -> Policy:
    name, *settings = text.split(":")
    parameters = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise BadInput(f"--policy {text}: {setting!r} is not of the form key=number") from None
    try:
        return known.policy(name, parameters)
    except InvalidField as error:
        raise BadInput(f"--policy {text}: {error.message}") from None


def _world(arguments: argparse.Namespace) -> World:
    """Read the world from the given files. Raise BadInput if one of them is invalid."""
    live = arguments.live_resize
    rules = ClusterRules(
        interval_s=arguments.interval,
        on_events=live,
        live_pause_s=_LIVE_PAUSE_S if live else None,
        view=View.ORACLE if arguments.oracle else View.LEARNED,
        failures_per_node_h=arguments.failures,
    )
    kinds = read_cluster(arguments.cluster)
    return world_of(
        arguments.jobs,
        read_stream(arguments.jobs),
        kinds,
        law=law_of(arguments.law),
        profiles=arguments.profiles,
        rules=rules,
        declares_length=not arguments.unknown_lengths,
    )


def _simulated(world: World, policies: dict[str, Policy], arguments: argparse.Namespace) -> Results:
    if not world.arrivals:
        raise BadInput(f"{arguments.jobs}: none of its jobs can ever run on this cluster")

    def tell(share: float) -> None:
        if arguments.progress:
            sys.stderr.write(json.dumps({"done": round(share, 4)}) + "\n")

    replays = sweep(
        world,
        policies,
        range(arguments.seeds),
        parallel=arguments.parallel,
        engine=arguments.engine,
        on_progress=tell,
    )
    runs = tuple(
        ReplayResult(replay=replace(found, policy=point.policy), figures=summary(found))
        for point, found in replays
    )
    return Results(name=f"{arguments.jobs.stem} on {arguments.cluster.stem}", runs=runs)


def _stop_on_signals() -> None:
    """Terminate the child processes before this one on SIGINT and SIGTERM, so that it does not wait for their replays."""

    def stop(_number: int, _frame: object) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


if __name__ == "__main__":
    _stop_on_signals()
    raise SystemExit(main())
