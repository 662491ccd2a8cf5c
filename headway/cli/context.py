"""Context of every verb: a client factory, the two consoles, the clock and the output formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console, RenderableType
from rich.text import Text

from headway._lazy import lazy
from headway.cli.plain import PlainConsole
from headway.client.client import Client
from headway.client.target import target
from headway.errors import HeadwayError
from headway.streams import json_for

if TYPE_CHECKING:
    import webbrowser
else:
    webbrowser = lazy("webbrowser")

_PIPED_WIDTH = 200
"""Width of tables that go to a file or pipe, in columns. It is wide enough that no table is cut for grep."""


class Format(StrEnum):
    """Output formats: tables for people, or the models of the API contract for programs."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table for people, json for programs")]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="name of a job (the newest of that name), or its id")
]
ProjectName = Annotated[
    str | None,
    typer.Option(
        "--project",
        "-p",
        envvar="HEADWAY_PROJECT",
        help="project of the job; default: all projects that you can see",
    ),
]
OwnProject = Annotated[
    str | None,
    typer.Option("--project", "-p", envvar="HEADWAY_PROJECT", help="project, if the job file names none"),
]
JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="job file (YAML); - for stdin")]
Replacements = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="replace a field of the job file, e.g. elastic.max=4; repeatable"
    ),
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="name or id of a node")]


def connect() -> Client:
    """Return a client of the configured service."""
    found = target(os.environ)
    return Client(found.url, found.token, ca_file=found.ca_file)


def _console(*, stderr: bool = False) -> Console:
    watched = (sys.stderr if stderr else sys.stdout).isatty()
    fixed = watched or "COLUMNS" in os.environ
    width = None if fixed else _PIPED_WIDTH
    return PlainConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


@dataclass
class Cli:
    """Dependencies of the verbs on the outside world. Tests pass their own."""

    connect: Callable[[], Client] = connect
    connect_to: Callable[[str, str], Client] = Client
    """Function that returns a client of the service at a URL, with a token."""
    out: Console = field(default_factory=_console)
    err: Console = field(default_factory=lambda: _console(stderr=True))
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    become: Callable[[list[str]], None] = lambda argv: os.execv(argv[0], argv)  # noqa: S606
    """Function that replaces this process by another program."""
    browse: Callable[[str], bool] = lambda url: bool(webbrowser.open(url))
    """Function that opens a page in a browser of this machine. It returns False when there is no browser."""

    def connect_in(self, project: str | None) -> Client:
        """Return a client that looks for jobs in `project`, if one is given."""
        client = self.connect()
        if project is not None:
            client.about(project)
        return client

    def warn(self, warnings: Iterable[str]) -> None:
        """Print warnings to stderr, one per line."""
        for warning in warnings:
            self.err.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)

    def show(self, output: Format, model: BaseModel, table: RenderableType) -> None:
        """Print a model as JSON, or its rendering, according to `output`."""
        if output is Format.JSON:
            print_json(to_json(model))
        else:
            self.out.print(table)

    def show_lines(self, output: Format, items: Iterable[tuple[BaseModel, RenderableType]]) -> None:
        """Print items as they arrive, as JSON Lines or as their renderings."""
        for model, line in items:
            if output is Format.JSON:
                print_json(model.model_dump_json(by_alias=True))
            else:
                self.out.print(line, soft_wrap=True)


def invalid(error: ValidationError, command: str) -> HeadwayError:
    """Return the error of a command whose options Pydantic refused: the first wrong option and its problem.

    An option is named like its field, without the unit of a duration.
    """
    first = error.errors()[0]
    option = ".".join(map(str, first["loc"])).replace("_", "-").removesuffix("-in-s")
    message = str(first["msg"]).removeprefix("Value error, ")
    return HeadwayError(f"--{option}: {message}" if option else message, f"See: headway {command} --help.")


def print_json(text: str, *, nl: bool = True) -> None:
    """Print JSON to stdout, without loss if its encoding lacks a character."""
    typer.echo(json_for(sys.stdout.encoding, text), nl=nl)


def to_json(model: BaseModel) -> str:
    """Return a model as indented JSON."""
    return model.model_dump_json(indent=2, by_alias=True)


def of(context: typer.Context) -> Cli:
    """Return the context of the running command."""
    cli: Cli = context.obj
    return cli
