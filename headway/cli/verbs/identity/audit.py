"""The verb that shows the audit log."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headway.cli.context import Format, Output, of
from headway.cli.verbs.cluster.budget import since_of
from headway.contract.views.identity import AuditView
from headway.contract.views.jobs import Page


def audit(
    context: typer.Context,
    project: Annotated[str | None, typer.Option("--project", "-p", help="show only this project")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="start: 24h or 7d ago, or 2026-12-01")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="show only the actions of this user, agent or program")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="show the newest N entries")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Show the audit log of changes and refused requests, newest first (admins).

    Admins of the service see all of it, and admins of a project see their project's part.

    Examples: headway audit --since 24h; headway audit --project vision --actor ada@example.org -o json
    """
    cli = of(context)
    begin = None if since is None else since_of(since, cli.now())
    with cli.connect() as client:
        found = list(islice(client.audit(project=project, actor=actor, since=begin), limit))
    empty = Text("The audit log has no matching entries.")
    cli.show(output, Page[AuditView](items=found), _table(found) if found else empty)


def _table(found: list[AuditView]) -> Table:
    table = Table("TIME", "WHO", "WHAT", "OF", "PROJECT", "ANSWER", "FROM", box=None, pad_edge=False)
    for one in found:
        more = " ".join(f"{name}={value}" for name, value in one.detail.items())
        table.add_row(
            f"{one.at.astimezone():%Y-%m-%d %H:%M:%S}",
            one.actor,
            one.action,
            f"{one.target} {more}".rstrip(),
            one.project or "",
            str(one.status),
            one.address,
        )
    return table
