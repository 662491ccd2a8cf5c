"""The verb that lists the processes of a job."""

from __future__ import annotations

import typer
from rich.text import Text

from headway.cli.context import Format, JobName, Output, ProjectName, of
from headway.cli.render import ranks as render
from headway.contract.views.jobs import Page
from headway.contract.views.ranks import RankView


def ranks(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """List a job's processes: rank, node, slot and process id.

    Each id is of the node's host. A process is named hw:JOB:RANK there, by the rank of its start.

    Example: headway ranks digits
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        found = list(client.ranks(job))
    nothing = Text("No ranks: the job has no process. `headway describe JOB` says why.")
    cli.show(output, Page[RankView](items=found), render.ranks_table(found) if found else nothing)
