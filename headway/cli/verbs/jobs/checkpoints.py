"""The verb that lists checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headway.cli.context import Format, JobName, Output, ProjectName, of
from headway.cli.render.jobs import columns
from headway.contract.values.quantities import size_text
from headway.contract.views.stored_files import CheckpointPage, CheckpointView


def checkpoints(
    context: typer.Context,
    job: JobName,
    limit: Annotated[int, typer.Option(min=1, max=500, help="show the newest N checkpoints")] = 100,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """List a job's checkpoints in storage, and mark the one that it would restore."""
    cli = of(context)
    with cli.connect_in(project) as client:
        page = client.checkpoints(job, limit=limit)
    cli.show(output, page, checkpoints_page(page))


def checkpoints_page(page: CheckpointPage) -> RenderableType:
    """Return the table of `headway checkpoints`, with notes on checkpoints that it cannot show."""
    return Group(*_parts(page))


def _parts(page: CheckpointPage) -> Iterator[RenderableType]:
    if page.items:
        names = ("SAVED", ">GENERATION", ">EPOCH", ">SAMPLES", ">SIZE", "CHECKPOINT")
        table = columns(*names, fold=["STATE"])
        for one in page.items:
            table.add_row(
                f"{one.saved_at:%Y-%m-%d %H:%M:%S}" if one.saved_at else "-",
                str(one.generation),
                str(one.epoch),
                f"{one.samples:,}" if one.samples is not None else "-",
                size_text(one.size_bytes),
                one.name,
                _state(one),
            )
        yield table
        yield Text(f"Stored under {page.uri}")
    if page.next_cursor is not None:
        yield Text("Older checkpoints are not shown.")
    if page.note:
        yield Text(page.note)


def _state(one: CheckpointView) -> Text:
    if not one.complete:
        return Text(one.problem, "yellow")
    return Text("complete: the job would restore it", "green") if one.restored_next else Text("complete")
