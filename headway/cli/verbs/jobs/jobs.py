"""The verbs that list jobs and change them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from headway._lazy import lazy
from headway.cli.context import Format, JobName, Output, ProjectName, of
from headway.cli.render import jobs as render
from headway.contract.spec import MAX_SLOTS
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView, Page
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from rich import live

    from headway.cli import waiting
else:
    live = lazy("rich.live")
    waiting = lazy("headway.cli.waiting")

_WATCH_S = 1.0
_LAST_EVENTS = 8
_WITH_OWNERS = 120
"""Least width of a screen, in characters, that has room for the owners of jobs beside the reasons."""


def ps(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="include finished jobs")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="refresh until Ctrl-C")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="show the newest N jobs")] = 100,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="NAME", help="only jobs that this user or robot submitted"),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="only jobs that you submitted")] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """List jobs and their progress."""
    if mine and owner is not None:
        raise typer.BadParameter("give either --mine or --owner NAME", param_hint="--mine")
    cli = of(context)
    with cli.connect_in(project) as client:
        whose = client.whoami().name if mine else owner

        def newest() -> list[JobView]:
            return list(itertools.islice(client.jobs(live=not all_, owner=whose), limit))

        def table(jobs: list[JobView]) -> RenderableType:
            if jobs:
                wide = cli.out.width >= _WITH_OWNERS
                return render.jobs_table(jobs, cli.now(), one_line=watch, owners=wide)
            by = f" of {whose}" if whose is not None else ""
            ended = "" if all_ else " `headway ps -a` includes finished jobs."
            return Text(f"No {'' if all_ else 'active '}jobs{by}.{ended}")

        jobs = newest()
        if not watch:
            cli.show(output, Page[JobView](items=jobs), table(jobs))
            return
        if output is Format.JSON:
            raise HeadwayError(
                "--watch shows a table.", "Leave out -o json, or run `headway ps -o json` repeatedly."
            )
        with live.Live(table(jobs), console=cli.out, auto_refresh=False) as screen:
            try:
                while True:
                    screen.update(table(newest()), refresh=True)
                    time.sleep(_WATCH_S)
            except KeyboardInterrupt:
                return


def describe(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Show all details of a job."""
    cli = of(context)
    with cli.connect_in(project) as client:
        view = client.job(job)
        events = [] if output is Format.JSON else list(client.events(view.id))[-_LAST_EVENTS:]
    cli.show(output, view, render.job_page(view, events, cli.now()))


def resize(
    context: typer.Context,
    job: JobName,
    slots: Annotated[
        str, typer.Argument(metavar="N|auto", help="fixed number of slots; auto: the scheduler chooses")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="restart a job that has not made its first step, instead of waiting for it"
        ),
    ] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Fix the size of a job, or let the scheduler choose it again."""
    plain = slots.isascii() and slots.isdecimal() and not slots.startswith("0")
    if slots != "auto" and not (plain and int(slots) <= MAX_SLOTS):
        raise typer.BadParameter(
            f"{slots!r} is neither a number from 1 to {MAX_SLOTS} nor auto", param_hint="N|auto"
        )
    size = None if slots == "auto" else int(slots)
    with of(context).connect_in(project) as client:
        view = client.resize(job, size, force=force)
    fixed = f"is fixed at {size} {'slot' if size == 1 else 'slots'}"
    effect = "will have the size that the scheduler chooses" if size is None else fixed
    _acknowledge(context, output, view, effect)


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
    """Change a job's priority from the next round on."""
    with of(context).connect_in(project) as client:
        view = client.set_priority(job, priority_)
    _acknowledge(context, output, view, f"has priority {view.spec.priority}")


def pause(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Stop a job, which may save a checkpoint, and take its slots until `headway resume`."""
    with of(context).connect_in(project) as client:
        view = client.pause(job)
    _acknowledge(context, output, view, f"will pause. To continue: headway resume {view.name}")


def resume(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Continue a job that is paused, or that failed or was cancelled, from its checkpoint."""
    with of(context).connect_in(project) as client:
        view = client.resume(job)
    effect = "will continue when it gets slots" if view.state is JobState.PENDING else "is not paused"
    _acknowledge(context, output, view, effect)


def cancel(
    context: typer.Context,
    job: JobName,
    force: Annotated[bool, typer.Option("--force", help="kill at once, without a last checkpoint")] = False,
    wait_: Annotated[
        bool, typer.Option("--wait", help="show the job until it has ended and holds no slot")
    ] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Cancel a job; `headway resume` continues it from its checkpoint, if it has one."""
    cli = of(context)
    with cli.connect_in(project) as client:
        view = client.cancel(job, force=force)
        if wait_ and view.state not in TERMINAL_STATES:
            try:
                view = waiting.wait(client, view.id, cli.err if output is Format.JSON else cli.out)
            except KeyboardInterrupt:
                cli.err.print(f"\n{view.name} is still ending. To see it: headway ps")
                raise typer.Exit(130) from None
    _acknowledge(context, output, view, "has ended" if view.state in TERMINAL_STATES else "will end")


def _acknowledge(context: typer.Context, output: Format, view: JobView, effect: str) -> None:
    # The message of a job that runs is about its last change, which this request makes old.
    runs = view.state is JobState.RUNNING
    now = f" on {view.size} {'slot' if view.size == 1 else 'slots'}" if runs else f": {view.message}"
    text = Text.assemble((view.name, "bold"), f" {effect}. It is ", render.state_text(view.state), now)
    of(context).show(output, view, text)
