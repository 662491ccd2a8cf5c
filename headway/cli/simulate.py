"""`headway simulate`: policies over a stream of jobs in virtual time, and a report to open in a browser."""

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

from headway.cli.context import Cli, Format, Output, of
from headway.cli.render import columns, duration
from headway.errors import HeadwayError

_PROGRAM = "service.simulation"
_TOLD_S, _PATIENCE_S = 0.5, 10.0
"""For the program to end after Ctrl-C, before it is told, and before it is killed."""


_Jobs = Annotated[Path, typer.Option(metavar="FILE", help="the jobs that come (CSV)")]
_Cluster = Annotated[Path, typer.Option(metavar="FILE", help="the nodes that there are (YAML)")]
_Policy = Annotated[
    str, typer.Option(metavar="A,B,C", help="policies to compare, NAME or NAME:KEY=NUMBER; or all")
]
_Seeds = Annotated[int, typer.Option(min=1, help="repeat with so many seeds of noise and failures")]
_Live = Annotated[
    bool, typer.Option("--live-resize/--restart", help="running jobs change in place, or by a restart")
]
_Law = Annotated[
    str, typer.Option("--law", metavar="LAW", help="speedup of jobs without profiles; or amdahl:0.95")
]
_Profiles = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="measured profiles, a folder for each application of the jobs"),
]
_Interval = Annotated[float, typer.Option(min=1.0, metavar="S", help="seconds between two rounds")]
_Failures = Annotated[float, typer.Option(min=0.0, metavar="RATE", help="failures of a node in an hour")]
_Oracle = Annotated[
    bool, typer.Option("--oracle", help="policies see true speeds, not what was learned so far")
]
_Unknown = Annotated[bool, typer.Option("--unknown-lengths", help="no job says how much work it has left")]
_Out = Annotated[Path, typer.Option(metavar="DIR", help="folder for the report and its rows")]
_Parallel = Annotated[int, typer.Option(min=1, metavar="N", help="replays at a time")]
_Engine = Annotated[str, typer.Option(metavar="NAME", help="what runs them: processes, joblib or ray")]


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
    """Replay a stream of jobs against policies, in virtual time: who is done when, at what cost. Nothing runs.

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
        typer.echo(json.dumps(found, indent=2))
    else:
        cli.out.print(_page(found))
        cli.out.print(Text.assemble("report  ", (found["report"], "bold")), soft_wrap=True)  # to be copied


def _run(cli: Cli, argv: list[str]) -> None:
    """Run the simulator with a progress bar.

    Raises:
        HeadwayError: it refused, or broke.
        typer.Exit: Ctrl-C.
    """
    command = [sys.executable, "-m", _PROGRAM, "--progress", *argv]
    came: list[int] = []
    # A Ctrl-C while the program is being started must not leave it without us.
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as program:
        try:
            signal.signal(signal.SIGINT, before)
            if came:
                raise KeyboardInterrupt  # noqa: TRY301 - to where one that comes later goes
            said = _follow(cli.err, program)
            code = program.wait()
        except KeyboardInterrupt:
            _end(program)
            cli.err.print("stopped; nothing was written")
            raise typer.Exit(130) from None
    if code == 2:
        raise HeadwayError("\n".join(said))
    if code != 0:
        raise HeadwayError(
            "\n".join(said[-8:]) or f"The simulator ended with exit code {code}.",
            "This is a defect of Headway.",
        )


def _follow(console: Console, program: subprocess.Popen[str]) -> list[str]:
    """Show progress until the program says no more; what it said besides."""
    said = []
    bar = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating", total=1.0)
        for line in program.stderr or ():
            share = _share(line)
            if share is None:
                said.append(line.rstrip("\n"))
            else:
                progress.update(task, completed=share)
    return said


def _share(line: str) -> float | None:
    try:
        return float(json.loads(line)["done"])
    except (ValueError, KeyError, TypeError):
        return None


def _end(program: subprocess.Popen[str]) -> None:
    """Wait for it to stop; a terminal has told it of the Ctrl-C as well, but not everybody who interrupts us has."""
    try:
        program.wait(_TOLD_S)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
    try:
        program.wait(_PATIENCE_S)
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
    table = columns("POLICY", "AVERAGE", "MEDIAN", "P99", "QUEUE", "MAKESPAN", "UNFAIR", "COST", "UNDONE")
    for column in table.columns[1:]:
        column.justify = "right"
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
