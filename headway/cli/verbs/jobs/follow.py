"""The verbs that read a job's output and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from headway.cli.context import Cli, Format, JobName, Output, ProjectName, of, print_json, to_json
from headway.cli.render import jobs as render
from headway.client.logs import lines
from headway.contract.views.jobs import EventView, LogChunk, Page
from headway.visible_text import visible

_Follow = Annotated[bool, typer.Option("--follow", "-f", help="follow until the job has ended")]


def logs(
    context: typer.Context,
    job: JobName,
    follow: _Follow = False,
    tail: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="start with the last N lines, at most 2 MiB"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="start: 10m, 2h or 1d ago, or a time such as 2026-03-10T12:00:00Z"),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="show only what was written under this rank, without the rank at the start of each line",
        ),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="show only this attempt of the job, at all of its sizes")
    ] = None,
    generation: Annotated[int | None, typer.Option(min=1, help="show only this generation")] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="send control and format characters, such as colours, to the terminal"),
    ] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    r"""Show the output of a job's ranks, in the order of its arrival.

    Agents upload the output to storage as it is printed, so the newest lines of a running job are seconds
    old. The output of ended jobs and lost ranks is kept. A line in the output marks a part that was left out,
    because a rank printed too much or because it is no longer kept. Control characters are shown as `\x1b`.
    A line that a progress bar redraws is shown in its last state.
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        read = client.follow_logs if follow else client.logs
        chunks = read(job, rank=rank, tail=tail, since=since, attempt=attempt, generation=generation)
        try:
            _show_logs(cli, chunks, output, prefixed=rank is None, follow=follow, raw=raw)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def events(
    context: typer.Context,
    job: JobName,
    follow: _Follow = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the events of a job."""
    cli = of(context)
    with cli.connect_in(project) as client:
        if not follow:
            past = list(client.events(job))
            if output is Format.JSON:
                print_json(to_json(Page[EventView](items=past)))
                return
            cli.show_lines(output, _without_repeats(past))
            return
        try:
            cli.show_lines(output, _without_repeats(client.follow_events(job)))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _without_repeats(events: Iterable[EventView]) -> Iterator[tuple[EventView, RenderableType]]:
    """Yield the lines of events. A traceback that repeats the message of the previous event is left out."""
    previous = ""
    for event in events:
        yield event, render.event_line(event, short=event.message == previous)
        previous = event.message


def _show_logs(
    cli: Cli, chunks: Iterable[LogChunk], output: Format, *, prefixed: bool, follow: bool, raw: bool
) -> None:
    if output is Format.TABLE:
        silent = True
        for line in lines(chunks, prefixed=prefixed, redraws=raw):
            silent = False
            typer.echo(line if raw else visible(line))
        if silent:
            cli.err.print("No output. `headway describe` shows the metrics that the script reports.")
    elif follow:
        for chunk in chunks:
            print_json(chunk.model_dump_json())
    else:
        typer.echo('{"items":[', nl=False)  # a page, written as it arrives: it can be larger than memory
        for number, chunk in enumerate(chunks):
            print_json(("," if number else "") + chunk.model_dump_json(), nl=False)
        typer.echo('],"next_cursor":null}')
