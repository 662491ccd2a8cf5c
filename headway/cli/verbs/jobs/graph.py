"""The verb that prints chains of jobs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from headway.cli.context import Format, Output, ProjectName, of
from headway.cli.render.graph import tree


def graph(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="name or id; default: all chains with a waiting job")
    ] = None,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which jobs start after which, as a tree.

    Example: headway graph train
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        found = client.graph(job, project=project)
    nothing = Text("No job waits for another one. A job file lists such jobs under `after`.")
    cli.show(output, found, tree(found) if found.jobs else nothing)
