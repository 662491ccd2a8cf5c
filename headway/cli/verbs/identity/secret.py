"""The verbs about secrets.

A value comes from a prompt or the standard input, never from the command line, which other users of the
machine can read.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headway.cli.context import Format, Output, of
from headway.contract.views.identity import SecretView
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError

secret = typer.Typer(no_args_is_help=True, help="Store credentials that jobs name under `secrets:`.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the secret in its project")]
_Project = Annotated[
    str, typer.Option("--project", "-p", envvar="HEADWAY_PROJECT", help="project of the secret")
]


@secret.command("set")
def set_(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Set a secret to a value from a prompt or the standard input. Nobody can read it back.

    Examples: headway secret set wandb-key --project vision; headway secret set wandb-key < key.txt
    """
    cli = of(context)
    value = _value(name)
    with cli.connect() as client:
        view = client.set_secret(project, name, value)
    cli.out.print(
        f"{view.name} is set in project {view.project}. In a job file: secrets: {{NAME: {view.name}}}"
    )


@secret.command("ls")
def list_(context: typer.Context, project: _Project = "default", output: Output = Format.TABLE) -> None:
    """List the secrets of a project, without their values."""
    cli = of(context)
    with cli.connect() as client:
        found = client.secrets(project)
    empty = Text(f"Project {project} has no secrets. Set one: headway secret set NAME --project {project}")
    cli.show(output, Page[SecretView](items=found), _table(found) if found else empty)


@secret.command("rm")
def remove(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Remove a secret. Jobs that name it no longer start."""
    cli = of(context)
    with cli.connect() as client:
        client.delete_secret(project, name)
    cli.out.print(f"{name} is removed from project {project}.")


def _value(name: str) -> str:
    if sys.stdin.isatty():
        value = str(typer.prompt(f"Value of {name}", hide_input=True))
    else:
        try:
            value = sys.stdin.read()
        except UnicodeDecodeError:
            raise HeadwayError(
                "The value is not text in UTF-8.", "Encode it, for example with base64."
            ) from None
        value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise HeadwayError("The value is empty.", f"Write it like: headway secret set {name} < FILE")
    return value


def _table(found: list[SecretView]) -> Table:
    table = Table("NAME", "SET BY", "CREATED", "CHANGED", box=None, pad_edge=False)
    for one in found:
        times = (f"{at.astimezone():%Y-%m-%d %H:%M}" for at in (one.created_at, one.updated_at))
        table.add_row(one.name, one.created_by, *times)
    return table
