"""Attempts of a confined program to leave its confinement, in each mode of isolation and from several working directories.

    python -m benchmarks.isolation --json

The attempts are those of an agent's self-test, by real processes: a program that is confined like a rank tries files, the
kernel's interfaces, sockets for packets, and the memory, files and signals of the agent and of another job's process.

`probes`: attempts in one mode from one working directory. `attempts`: all of them. `open`: attempts that succeeded although
docs/isolation.md says that they fail; `opened` names them. `not_promised`: attempts that succeeded and that the page leaves
open, by mode and kind. `unfiltered_open`: attempts that succeed in the mode `none` without the filter of
system calls, which shows that they are real. `left_out`: modes that this host does not have, with the reason.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.contract.isolation import IsolationFacts
from headway.errors import HeadwayError
from worker_agent.host.folders import StateFolder
from worker_agent.isolation.modes import KINDS, Kind, UserIds, choose
from worker_agent.isolation.scratch import close_scratch
from worker_agent.isolation.self_check import Place, clean_up, examine
from worker_agent.launcher import landlock
from worker_agent.runs.environment import base_env

SHARED_BY_LANDLOCK = ("count files of ",)
"""Beginnings of the attempts that the mode `landlock` does not prevent."""
SEPARATED_BY_NONE = frozenset({"kernel", "sockets"})
"""Kinds of attempts that the mode `none` prevents too: the filter of system calls does."""


def main() -> None:
    """Make all attempts, and print the outcome."""
    parser = benchmark_parser(__doc__, quick="from two working directories")
    arguments = parser.parse_args()
    places: tuple[Place, ...] = get_args(Place)
    with temporary_folder() as folder:
        folder.chmod(0o711)
        show(measure(folder, places[:2] if arguments.quick else places), arguments)


def measure(folder: Path, places: tuple[Place, ...]) -> dict[str, Any]:
    """Return the figures. `folder` gets the state of an agent for each mode; other users must be able to pass through it."""
    opened: list[str] = []
    not_promised: defaultdict[str, Counter[str]] = defaultdict(Counter)
    left_out: dict[str, str] = {}
    counts: list[int] = []
    kinds: set[str] = set()
    for mode in KINDS:
        for place in places:
            try:
                facts = attempt(mode, folder / f"{mode}-{place}", place)
            except HeadwayError as error:
                left_out[mode] = error.what
                break
            kinds |= set(facts.results)
            counts.append(sum(one.probes for one in facts.results.values()))
            for kind, result in facts.results.items():
                for name in result.open:
                    if promised(mode, kind, name):
                        opened.append(f"{mode}, {place}: {name}")
                    else:
                        not_promised[mode][kind] += 1
    unfiltered = attempt("none", folder / "unfiltered", places[0], all_calls=True)
    return {
        "probes": min(counts),
        "kinds": sorted(kinds),
        "working_directories": len(places),
        "attempts": sum(counts),
        "open": len(opened),
        "opened": opened,
        "not_promised": not_promised,
        "unfiltered_open": sum(len(one.open) for one in unfiltered.results.values()),
        "left_out": left_out,
    }


def attempt(mode: Kind, folder: Path, place: Place, *, all_calls: bool = False) -> IsolationFacts:
    """Return what a program reaches in one mode from one working directory.

    Raises:
        HeadwayError: the host does not have the mode.
        RuntimeError: the attempts could not be made.
    """
    state = StateFolder(folder)
    state.make()
    environment = base_env(os.environ, ())
    isolation = choose(mode, state, environment, UserIds(), None, all_calls=all_calls)
    try:
        facts, problem = examine(isolation, place)
    finally:
        clean_up(isolation)
        close_scratch(state)
    if facts is None:
        raise RuntimeError(f"{mode}: {problem}")
    return facts


def promised(mode: Kind, kind: str, name: str) -> bool:
    """Return True if docs/isolation.md says that the attempt fails in this mode."""
    if mode == "none":
        return kind in SEPARATED_BY_NONE
    if mode == "landlock":
        signals = kind != "signals" or landlock.confines_signals()
        return signals and not name.startswith(SHARED_BY_LANDLOCK)
    return True


if __name__ == "__main__":
    run_benchmark(main)
