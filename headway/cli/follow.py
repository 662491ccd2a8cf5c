"""The verbs that read a job's output and history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from headway.cli import render
from headway.cli.context import Cli, Format, JobName, Output, ProjectName, of, to_json
from headway.contract.jobs import EventView, LogChunk, Page

LONGEST_LINE = 1 << 20
"""Characters. More is not held back to wait for the line's end."""
_Follow = Annotated[bool, typer.Option("--follow", "-f", help="go on until the job is over")]


def logs(
    context: typer.Context,
    job: JobName,
    follow: _Follow = False,
    tail: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="begin with the last N lines, of 2 MiB in all at most"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="what arrived within 10m, 2h or 1d, or from a time on, such as 2026-03-10T12:00:00Z"
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="of this rank only, without the rank before each line")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="of this start of the job only, with all sizes that it had")
    ] = None,
    generation: Annotated[int | None, typer.Option(min=1, help="of this generation only")] = None,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a job's ranks print, in the order in which it arrived.

    It comes from storage, where agents put it as it is printed: a running job's newest lines are seconds old, and those of a job
    that has ended or a rank that is gone are kept. What was left out, since a rank printed too much, or is not kept any more, is
    said in its place.
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        read = client.follow_logs if follow else client.logs
        chunks = read(job, rank=rank, tail=tail, since=since, attempt=attempt, generation=generation)
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
        typer.echo('{"items":[', nl=False)  # a page, written as it comes: it can be longer than memory
        for number, chunk in enumerate(chunks):
            typer.echo(("," if number else "") + chunk.model_dump_json(), nl=False)
        typer.echo('],"next_cursor":null}')


def lines(chunks: Iterable[LogChunk], *, prefixed: bool) -> Iterator[str]:
    """Whole lines from pieces of the output of several ranks; each begins with its rank when `prefixed`.

    A rank's piece may end anywhere; what is left of a line at the end comes last. A line that is longer than any screen is shown
    in parts, as it comes.
    """
    rest: dict[tuple[int, int], str] = {}
    for chunk in chunks:
        key = (chunk.generation, chunk.rank)
        *whole, rest[key] = (rest.get(key, "") + chunk.text).split("\n")
        if len(rest[key]) > LONGEST_LINE:
            whole.append(rest.pop(key))
        for line in whole:
            yield _prefix(chunk.rank, prefixed=prefixed) + line
    for (_, rank), line in sorted(rest.items()):
        if line:
            yield _prefix(rank, prefixed=prefixed) + line


def _prefix(rank: int, *, prefixed: bool) -> str:
    return f"[{rank}] " if prefixed else ""
