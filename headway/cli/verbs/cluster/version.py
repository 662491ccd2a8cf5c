"""The verb `headway version`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import typer

from headway.cli.context import of
from headway.errors import HeadwayError


def version(context: typer.Context) -> None:
    """Show the versions of this program and of the service."""
    cli = of(context)
    cli.out.print(f"headway {installed_version('headway')}")
    try:
        with cli.connect() as client:
            cli.out.print(f"service {client.version()} at {client.url}")
    except HeadwayError as error:
        cli.out.print(f"service: {error}", soft_wrap=True)
