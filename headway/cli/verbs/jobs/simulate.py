"""The verb `headway simulate`, which replays a list of jobs under several policies in virtual time."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headway.cli.context import Cli, Format, Output, of, print_json
from headway.cli.render.jobs import columns
from headway.contract.values.quantities import duration
from headway.errors import HeadwayError

_PROGRAM = "service.simulation"
_INTERRUPT_AFTER_S, _KILL_AFTER_S = 0.5, 10.0
"""Seconds for the simulator to end after Ctrl-C: before it gets a signal, and before it is killed."""

_Jobs = Annotated[Path, typer.Option(metavar="FILE", help="jobs to submit (CSV)")]
_Cluster = Annotated[Path, typer.Option(metavar="FILE", help="nodes of the cluster (YAML)")]
_Policy = Annotated[
    str, typer.Option(metavar="A,B,C", help="policies to compare, NAME or NAME:KEY=NUMBER; or all")
]
_Seeds = Annotated[int, typer.Option(min=1, help="number of seeds of noise and failures")]
_Live = Annotated[
    bool, typer.Option("--live-resize/--restart", help="resize running jobs in place, or by a restart")
]
_Law = Annotated[
    str, typer.Option("--law", metavar="LAW", help="speedup of jobs without profiles; or amdahl:0.95")
]
_Profiles = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="measured profiles, a folder for each application of the jobs"),
]
_Interval = Annotated[float, typer.Option(min=1.0, metavar="S", help="seconds between two rounds")]
_Failures = Annotated[float, typer.Option(min=0.0, metavar="RATE", help="failures of a node per hour")]
_Oracle = Annotated[
    bool, typer.Option("--oracle", help="show policies the true speeds instead of learned ones")
]
_Unknown = Annotated[
    bool, typer.Option("--unknown-lengths", help="hide the remaining work of jobs from policies")
]
_Out = Annotated[Path, typer.Option(metavar="DIR", help="folder for the report and its rows")]
_Parallel = Annotated[int, typer.Option(min=1, metavar="N", help="number of parallel replays")]
_Engine = Annotated[
    str, typer.Option(metavar="NAME", help="engine for parallel replays: processes, joblib or ray")
]


def simulate(
    context: typer.Context,
    jobs: _Jobs,
    cluster: _Cluster,
    policy: _Policy = "goodput,fifo",
    seeds: _Seeds = 1,
    live_resize: _Live = False,
    law: _Law = "power:0.8",
    profiles: _Profiles = None,
    interval: _Interval = 60.0,
    failures: _Failures = 0.0,
    oracle: _Oracle = False,
    unknown_lengths: _Unknown = False,
    out: _Out = Path("simulation"),
    parallel: _Parallel = 1,
    engine: _Engine = "processes",
    output: Output = Format.TABLE,
) -> None:
    """Compare policies on a list of jobs in virtual time, by completion times and cost. Nothing runs.

    Example: headway simulate --jobs examples/simulation/jobs.csv --cluster examples/simulation/cluster.yaml
    """
    if any(importlib.util.find_spec(module) is None for module in ("service", "numpy", "ortools")):
        raise HeadwayError(
            "The simulator is not installed here.", "Install it: pip install 'headway[service]'."
        )
    arguments = {
        "jobs": jobs,
        "cluster": cluster,
        "policy": policy,
        "seeds": seeds,
        "law": law,
        "profiles": profiles,
        "interval": interval,
        "failures": failures,
        "out": out,
        "parallel": parallel,
        "engine": engine,
    }
    flags = {"live-resize": live_resize, "oracle": oracle, "unknown-lengths": unknown_lengths}
    argv = [
        *(f"--{key}={value}" for key, value in arguments.items() if value is not None),
        *(f"--{key}" for key, wanted in flags.items() if wanted),
    ]
    cli = of(context)
    _run(cli, argv)
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    found["report"] = str(out / "report.html")
    if output is Format.JSON:
        print_json(json.dumps(found, indent=2))
    else:
        cli.out.print(_page(found))
        # On a line of its own, so that it can be copied.
        cli.out.print(Text.assemble("report  ", (found["report"], "bold")), soft_wrap=True)


def _run(cli: Cli, argv: list[str]) -> None:
    """Run the simulator with a progress bar.

    Raises:
        HeadwayError: the simulator rejected its input, or failed.
        typer.Exit: the user pressed Ctrl-C.
    """
    command = [sys.executable, "-m", _PROGRAM, "--progress", *argv]
    interrupts: list[int] = []
    # A Ctrl-C while the program is being started must not leave it running alone.
    before = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as program:
        try:
            signal.signal(signal.SIGINT, before)
            if interrupts:
                raise KeyboardInterrupt  # noqa: TRY301  # handled like a later Ctrl-C
            lines = _follow(cli.err, program)
            code = program.wait()
        except KeyboardInterrupt:
            _end(program)
            cli.err.print("Stopped; nothing was written.")
            raise typer.Exit(130) from None
    if code == 2:
        raise HeadwayError("\n".join(lines))
    if code != 0:
        raise HeadwayError(
            "\n".join(lines[-8:]) or f"The simulator ended with exit code {code}.",
            "This is a defect of Headway.",
        )


def _follow(console: Console, program: subprocess.Popen[str]) -> list[str]:
    """Show progress until the program closes its standard error, and return its other lines."""
    lines = []
    bar = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating", total=1.0)
        for line in program.stderr or ():
            share = _share(line)
            if share is None:
                lines.append(line.rstrip("\n"))
            else:
                progress.update(task, completed=share)
    return lines


def _share(line: str) -> float | None:
    try:
        return float(json.loads(line)["done"])
    except (ValueError, KeyError, TypeError):
        return None


def _end(program: subprocess.Popen[str]) -> None:
    """Wait for the simulator to stop.

    A terminal sends Ctrl-C to it as well, but other senders of the signal may not.
    """
    try:
        program.wait(_INTERRUPT_AFTER_S)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
    try:
        program.wait(_KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        program.kill()


def _page(found: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_table(found["policies"])]
    rejected = found["rejected"]
    if rejected:
        first = rejected[0]
        count = "1 job" if len(rejected) == 1 else f"{len(rejected):,} jobs"
        parts.append(
            Text(f"{count} can never run here, such as {first['id']}: {first['reason']}", style="yellow")
        )
    return Group(*parts)


def _table(policies: list[dict[str, Any]]) -> Table:
    times = (">AVERAGE", ">MEDIAN", ">P99", ">QUEUE", ">MAKESPAN")
    table = columns("POLICY", *times, ">UNFAIR", ">COST", ">UNDONE")
    best = min(one["mean"]["avg_jct_h"] for one in policies)
    for one in policies:
        mean = one["mean"]
        times = ("avg_jct_h", "median_jct_h", "p99_jct_h", "queue_h", "makespan_h")
        first = len(policies) > 1 and mean["avg_jct_h"] == best
        table.add_row(
            one["policy"],
            *(duration(3600 * mean[key]) for key in times),
            f"{100 * mean['unfair_share']:.0f} %",
            f"${mean['usd']:,.2f}",
            f"{mean['unfinished']:.0f}",
            style="bold" if first else None,
        )
    return table
