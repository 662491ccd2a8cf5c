"""The program `headway`. A verb is imported when it runs: see `headway.cli.table`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headway._lazy import lazy
from headway.cli.group import VerbGroup
from headway.streams import make_streams_tolerant

if TYPE_CHECKING:
    from importlib import metadata

    from headway.cli import context as surroundings
else:
    metadata = lazy("importlib.metadata")
    surroundings = lazy("headway.cli.context")

_WITH_PLUGINS = frozenset({"up", "agent"})
"""Verbs that start other programs, which may use plugins of Pydantic."""

app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Also: `ls` and `status` for `ps`, `status JOB` for `describe`, `stop` and `rm` for `cancel`.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headway {metadata.version('headway')}")
        raise typer.Exit


@app.callback()
def _surroundings(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Elastic PyTorch training: submit jobs, watch them, change their size.

    HEADWAY_URL and HEADWAY_TOKEN name the service; without them, the one that `headway up` started.
    """
    context.obj = context.obj or surroundings.Cli()


def run() -> None:
    """Run the program without modules that take longer to load than the service takes to answer.

    Pydantic would look for plugins in every installed package. httpx would import its own command line.
    """
    make_streams_tolerant()
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as if httpx had no command line
    if _WITH_PLUGINS.isdisjoint(sys.argv[1:2]):
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    app(prog_name="headway")
