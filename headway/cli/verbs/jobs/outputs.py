"""The verb that lists and downloads output folders."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headway.cli.context import Format, JobName, Output, ProjectName, of
from headway.cli.render.jobs import columns
from headway.contract.values.quantities import size_text
from headway.contract.views.stored_files import OutputPage
from headway.visible_text import visible_line


def output(
    context: typer.Context,
    job: JobName,
    to: Annotated[
        Path | None, typer.Option("--to", help="download the files into this folder", file_okay=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="show the first N files")] = 100,
    project: ProjectName = None,
    output_format: Output = Format.TABLE,
) -> None:
    """List the files of a job's output folder in storage, or download them."""
    cli = of(context)
    with cli.connect_in(project) as client:
        if to is None:
            page = client.output(job, limit=limit)
            cli.show(output_format, page, output_page(page))
            return
        files = size_bytes = 0
        for one in client.download_output(job, to):
            files += one.kind != "folder"
            size_bytes += one.size_bytes
        cli.out.print(f"{files:,} files, {size_text(size_bytes)}, are in {to}", soft_wrap=True)


def output_page(page: OutputPage) -> RenderableType:
    """Return the table of `headway output`, with notes on files that it cannot show."""
    return Group(*_parts(page))


def _parts(page: OutputPage) -> Iterator[RenderableType]:
    if page.items:
        table = columns("WRITTEN", ">SIZE", ">GENERATION", fold=["FILE"])
        for one in page.items:
            written = datetime.fromtimestamp(one.mtime_ns / 1e9, UTC) if one.mtime_ns else None
            name = f"{one.path}/" if one.kind == "folder" else one.path
            table.add_row(
                f"{written:%Y-%m-%d %H:%M:%S}" if written else "-",
                size_text(one.size_bytes) if one.kind == "file" else "-",
                str(one.generation),
                Text(visible_line(f"{name} -> {one.target}" if one.kind == "link" else name)),
            )
        yield table
        yield Text(f"Saved {page.saved_at:%Y-%m-%d %H:%M:%S} under {page.uri}")
    if page.next_cursor is not None:
        yield Text("More files are not shown. To list more, set --limit.")
    if page.note:
        yield Text(page.note)
