"""What every verb works with: a way to the service, two consoles, the clock, the output format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.console import Console, RenderableType

from headway.cli.config import target
from headway.client import Client

_PIPED_WIDTH = 200
"""Columns when nobody watches: wide enough that a table is not cut for grep."""


class Format(StrEnum):
    """Tables for people, or the contract's models for programs."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table for people, json for programs")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="name of a job (its newest), or its id")]
ProjectName = Annotated[
    str | None,
    typer.Option(
        "--project", "-p", envvar="HEADWAY_PROJECT", help="of this project; none: of all that you see"
    ),
]
OwnProject = Annotated[
    str | None,
    typer.Option(
        "--project", "-p", envvar="HEADWAY_PROJECT", help="in this project, where the job file names none"
    ),
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="name or id of a node")]


def connect() -> Client:
    """A client of the configured service."""
    found = target(os.environ)
    return Client(found.url, found.token)


def _console(*, stderr: bool = False) -> Console:
    watched = (sys.stderr if stderr else sys.stdout).isatty()
    fixed = watched or "COLUMNS" in os.environ
    width = None if fixed else _PIPED_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


@dataclass
class Cli:
    """The command line's surroundings; tests hand in their own."""

    connect: Callable[[], Client] = connect
    connect_to: Callable[[str, str], Client] = Client
    """A client of the service at a URL, with a token."""
    out: Console = field(default_factory=_console)
    err: Console = field(default_factory=lambda: _console(stderr=True))
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    become: Callable[[list[str]], None] = lambda argv: os.execv(argv[0], argv)  # noqa: S606
    """Replace this process by another program."""

    def connect_in(self, project: str | None) -> Client:
        """A client that looks for jobs in a project, if one is given."""
        client = self.connect()
        if project is not None:
            client.about(project)
        return client

    def show(self, output: Format, model: BaseModel, table: RenderableType) -> None:
        """Print a model as JSON, or its rendering."""
        if output is Format.JSON:
            typer.echo(to_json(model))
        else:
            self.out.print(table)

    def show_lines(self, output: Format, items: Iterable[tuple[BaseModel, RenderableType]]) -> None:
        """Print items as they come: JSON Lines, or their renderings."""
        for model, line in items:
            if output is Format.JSON:
                typer.echo(model.model_dump_json(by_alias=True))
            else:
                self.out.print(line, soft_wrap=True)


def to_json(model: BaseModel) -> str:
    """A model as a program reads it, indented."""
    return model.model_dump_json(indent=2, by_alias=True)


def of(context: typer.Context) -> Cli:
    """The surroundings of the running command."""
    cli: Cli = context.obj
    return cli
