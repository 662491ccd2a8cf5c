"""The verbs that read a job's output and history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from headway.cli import render
from headway.cli.context import Cli, Format, JobName, Output, ProjectName, of, to_json
from headway.contract.jobs import EventView, LogChunk, Page

_Follow = Annotated[bool, typer.Option("--follow", "-f", help="go on until the job is over")]


def logs(
    context: typer.Context,
    job: JobName,
    follow: _Follow = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="of this rank only, without the rank before each line")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="begin with the last N lines")] = None,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a job's ranks print."""
    cli = of(context)
    with cli.connect_in(project) as client:
        read = client.follow_logs if follow else client.logs
        chunks = read(job, rank=rank, tail=tail)
        try:
            _show_logs(cli, chunks, output, prefixed=rank is None, follow=follow)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def events(
    context: typer.Context,
    job: JobName,
    follow: _Follow = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what happened to a job."""
    cli = of(context)
    with cli.connect_in(project) as client:
        if not follow:
            past = list(client.events(job))
            if output is Format.JSON:
                typer.echo(to_json(Page[EventView](items=past)))
                return
            cli.show_lines(output, ((event, render.event_line(event)) for event in past))
            return
        try:
            cli.show_lines(output, ((event, render.event_line(event)) for event in client.follow_events(job)))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _show_logs(cli: Cli, chunks: Iterable[LogChunk], output: Format, *, prefixed: bool, follow: bool) -> None:
    if output is Format.TABLE:
        silent = True
        for line in lines(chunks, prefixed=prefixed):
            silent = False
            typer.echo(line)
        if silent:
            cli.err.print("No output. What a script reports is in `headway describe`.")
    elif follow:
        for chunk in chunks:
            typer.echo(chunk.model_dump_json())
    else:
        cli.show(output, Page[LogChunk](items=list(chunks)), "")


def lines(chunks: Iterable[LogChunk], *, prefixed: bool) -> Iterator[str]:
    """Whole lines from pieces of the output of several ranks; each begins with its rank when `prefixed`.

    A rank's piece may end anywhere; what is left of a line at the end comes last.
    """
    rest: dict[tuple[int, int], str] = {}
    for chunk in chunks:
        key = (chunk.generation, chunk.rank)
        *whole, rest[key] = (rest.get(key, "") + chunk.text).split("\n")
        for line in whole:
            yield _prefix(chunk.rank, prefixed=prefixed) + line
    for (_, rank), line in sorted(rest.items()):
        if line:
            yield _prefix(rank, prefixed=prefixed) + line


def _prefix(rank: int, *, prefixed: bool) -> str:
    return f"[{rank}] " if prefixed else ""
