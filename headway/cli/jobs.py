"""The verbs about jobs."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from headway import jobfile
from headway.cli import render
from headway.cli.context import Cli, Format, JobName, Output, OwnProject, ProjectName, of
from headway.cli.waiting import EXIT_CODES, wait
from headway.client import Client
from headway.contract.jobs import JobView, Page
from headway.errors import HeadwayError

_WATCH_S = 1.0
_LAST_EVENTS = 8


def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="job file (YAML); - for stdin")],
    wait_: Annotated[
        bool,
        typer.Option("--wait", help="show it until it is over; exit 0 succeeded, 100 failed, 103 cancelled"),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="replace a field, e.g. --set elastic.max=4; repeatable"
        ),
    ] = None,
    project: OwnProject = None,
    output: Output = Format.TABLE,
) -> None:
    """Submit a job file."""
    cli = of(context)
    spec = jobfile.load(file, set_ or [])
    base = Path.cwd() if str(file) == "-" else file.resolve().parent
    with cli.connect_in(project) as client:
        job = client.submit(spec, base=base)
        if not wait_:
            cli.show(
                output,
                job,
                Text(f"{job.name} is submitted, id {job.id}. Follow it: headway logs -f {job.name}"),
            )
            return
        last = _wait(cli, client, job, output)
    raise typer.Exit(EXIT_CODES[last.state])


def _wait(cli: Cli, client: Client, job: JobView, output: Format) -> JobView:
    """Show the job on stderr when stdout is for a program."""
    console = cli.err if output is Format.JSON else cli.out
    try:
        last = wait(client, job.id, console)
    except KeyboardInterrupt:
        cli.err.print(f"\n{job.name} goes on. See it: headway ps. End it: headway cancel {job.name}")
        raise typer.Exit(130) from None
    verdict = Text.assemble(f"{last.name} ", render.state_text(last.state), f": {last.message}")
    cli.show(output, last, verdict)
    return last


def ps(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="finished jobs too")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="go on showing until Ctrl-C")] = False,
    limit: Annotated[int, typer.Option(min=1, help="show the newest N jobs")] = 100,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """List jobs."""
    cli = of(context)
    with cli.connect_in(project) as client:

        def newest() -> list[JobView]:
            return list(itertools.islice(client.jobs(live=not all_), limit))

        def table(jobs: list[JobView]) -> RenderableType:
            if jobs:
                return render.jobs_table(jobs, cli.now())
            return Text("No jobs." if all_ else "No active jobs. `headway ps -a` shows finished ones, too.")

        jobs = newest()
        if not watch:
            cli.show(output, Page[JobView](items=jobs), table(jobs))
            return
        if output is Format.JSON:
            raise HeadwayError(
                "--watch shows a table.", "Leave out -o json, or run `headway ps -o json` repeatedly."
            )
        with Live(table(jobs), console=cli.out, auto_refresh=False) as live:
            try:
                while True:
                    live.update(table(newest()), refresh=True)
                    time.sleep(_WATCH_S)
            except KeyboardInterrupt:
                return


def describe(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Show everything about a job."""
    cli = of(context)
    with cli.connect_in(project) as client:
        view = client.job(job)
        events = [] if output is Format.JSON else list(client.events(view.id))[-_LAST_EVENTS:]
    cli.show(output, view, render.job_page(view, events, cli.now()))


def resize(
    context: typer.Context,
    job: JobName,
    slots: Annotated[
        str, typer.Argument(metavar="N|auto", help="slots to keep it at; auto: the scheduler chooses")
    ],
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Fix the size of a job, or give the choice back to the scheduler."""
    if slots != "auto" and not slots.isdigit():
        raise typer.BadParameter(f"{slots!r} is neither a number nor auto", param_hint="N|auto")
    size = None if slots == "auto" else int(slots)
    with of(context).connect_in(project) as client:
        view = client.resize(job, size)
    said = "will have the size that the scheduler chooses" if size is None else f"is to have {size} slots"
    _acknowledge(context, output, view, said)


def priority(
    context: typer.Context,
    job: JobName,
    priority_: Annotated[
        int,
        typer.Argument(min=0, max=100, metavar="PRIORITY", help="0 to 100; each 25 points double its weight"),
    ],
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Change how much a job counts against others, from the next round on."""
    with of(context).connect_in(project) as client:
        view = client.set_priority(job, priority_)
    _acknowledge(context, output, view, f"has priority {view.spec.priority}")


def pause(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Take a job's slots after a checkpoint; `headway resume` goes on from there."""
    with of(context).connect_in(project) as client:
        view = client.pause(job)
    _acknowledge(context, output, view, f"will pause; go on with: headway resume {view.name}")


def resume(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Let a paused job go on from its checkpoint."""
    with of(context).connect_in(project) as client:
        view = client.resume(job)
    _acknowledge(context, output, view, "will go on when it gets slots")


def cancel(
    context: typer.Context,
    job: JobName,
    force: Annotated[bool, typer.Option("--force", help="kill at once, without a last checkpoint")] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """End a job for good."""
    with of(context).connect_in(project) as client:
        view = client.cancel(job, force=force)
    _acknowledge(context, output, view, "will end")


def _acknowledge(context: typer.Context, output: Format, view: JobView, said: str) -> None:
    text = Text.assemble(
        (view.name, "bold"), f" {said}. It is ", render.state_text(view.state), f": {view.message}"
    )
    of(context).show(output, view, text)
