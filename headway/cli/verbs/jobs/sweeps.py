"""The verbs about sweeps."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from headway.cli.context import Cli, Format, Output, ProjectName, of
from headway.cli.render.sweeps import states_text, sweep_page, sweeps_table
from headway.contract.views.jobs import Page
from headway.contract.views.sweeps import SweepSummary, SweepView
from headway.errors import HeadwayError


class _Sweeps(TyperGroup):
    """A group in which a word that is no verb is the name of a sweep to show."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


sweep = typer.Typer(
    cls=_Sweeps,
    no_args_is_help=False,
    help="Show sweeps and their trials; cancel, pause or resume all trials at once.",
)
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="name of a sweep (the newest of that name), or its id")
]


@sweep.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    """Show sweeps and their trials; cancel, pause or resume all trials at once.

    Examples: headway sweep; headway sweep gpt; headway sweep gpt --csv; headway sweep cancel gpt
    """
    if context.invoked_subcommand is None:
        _list(of(context), None, 100, Format.TABLE)


@sweep.command("list")
def list_(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="show the newest N sweeps")] = 100,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """List the sweeps of all projects that you can see, newest first."""
    _list(of(context), project, limit, output)


def _list(cli: Cli, project: str | None, limit: int, output: Format) -> None:
    with cli.connect() as client:
        found = list(itertools.islice(client.sweeps(project=project), limit))
    empty = Text("No sweeps. `sweep` in a job file makes one of its job.")
    cli.show(output, Page[SweepSummary](items=found), sweeps_table(found) if found else empty)


@sweep.command("show")
def show(
    context: typer.Context,
    name: _Name,
    csv: Annotated[bool, typer.Option("--csv", help="print the results as CSV")] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the trials of a sweep, and mark the best. `headway sweep NAME` does the same."""
    if csv and output is Format.JSON:
        raise HeadwayError("--csv and -o json exclude each other.", "Give one of them.")
    cli = of(context)
    with cli.connect_in(project) as client:
        if csv:
            typer.echo(client.sweep_csv(name), nl=False)
            return
        view = client.sweep(name)
    cli.show(output, view, sweep_page(view))


@sweep.command("cancel")
def cancel(
    context: typer.Context,
    name: _Name,
    force: Annotated[bool, typer.Option("--force", help="kill at once, without a last checkpoint")] = False,
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Cancel every trial that has not ended."""
    with of(context).connect_in(project) as client:
        _acknowledge(context, output, client.cancel_sweep(name, force=force), "will end")


@sweep.command("pause")
def pause(
    context: typer.Context, name: _Name, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Stop every trial that has not ended, and take its slots until `headway sweep resume`."""
    with of(context).connect_in(project) as client:
        view = client.pause_sweep(name)
    _acknowledge(context, output, view, f"will pause. To continue: headway sweep resume {view.name}")


@sweep.command("resume")
def resume(
    context: typer.Context, name: _Name, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Let every paused trial of a sweep wait for slots again."""
    with of(context).connect_in(project) as client:
        _acknowledge(context, output, client.resume_sweep(name), "continues when its trials get slots")


@sweep.command("priority")
def priority(
    context: typer.Context,
    name: _Name,
    priority_: Annotated[
        int,
        typer.Argument(min=0, max=100, metavar="PRIORITY", help="0 to 100; each 25 points double the weight"),
    ],
    project: ProjectName = None,
    output: Output = Format.TABLE,
) -> None:
    """Change the priority of every trial that has not ended."""
    with of(context).connect_in(project) as client:
        view = client.set_sweep_priority(name, priority_)
    _acknowledge(context, output, view, f"has priority {priority_}")


def _acknowledge(context: typer.Context, output: Format, view: SweepView, effect: str) -> None:
    text = Text.assemble((view.name, "bold"), f" {effect}. Its trials: {states_text(view.states)}")
    of(context).show(output, view, text)
