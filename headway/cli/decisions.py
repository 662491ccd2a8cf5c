"""The verbs about decisions: why, by which policy, and what a job would take."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from headway import jobfile
from headway.cli import render_decisions
from headway.cli.context import Format, JobName, Output, OwnProject, ProjectName, of
from headway.contract.decisions import ParameterValue, RoundView
from headway.contract.jobs import Page
from headway.errors import HeadwayError


def plan(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="job file (YAML); - for stdin")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="replace a field, as of submit; repeatable"),
    ] = None,
    project: OwnProject = None,
    output: Output = Format.TABLE,
) -> None:
    """Say what a job file would take here at every size, in time and money. Nothing is submitted.

    Example: headway plan job.yaml --set elastic.max=8
    """
    cli = of(context)
    spec = jobfile.load(file, set_ or [])
    with cli.connect_in(project) as client:
        view = client.plan(spec)
    cli.show(output, view, render_decisions.plan_page(view))


def forecast(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Say when a job will end and what it will cost, at every size it could have.

    Example: headway forecast digits
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        view = client.forecast(job)
    cli.show(output, view, render_decisions.forecast_page(view))


def explain(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Say why a job has the size it has, or why it waits, and what more would be worth to it.

    Example: headway explain digits
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        explained = client.explain(job)
    cli.show(output, explained, render_decisions.explain_page(explained, cli.now()))


def rounds(
    context: typer.Context,
    round_: Annotated[
        str | None, typer.Argument(metavar="ROUND", help="id of one round, or latest; none: list them")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="show the newest N rounds")] = 20,
    output: Output = Format.TABLE,
) -> None:
    """List scheduling rounds, or show one: policy, bound, prices and every change with its reason.

    Examples: headway rounds; headway rounds latest
    """
    cli = of(context)
    with cli.connect() as client:
        if round_ is not None:
            one = client.round(round_)
            cli.show(output, one, render_decisions.round_page(one, cli.now()))
            return
        found = list(itertools.islice(client.rounds(), limit))
    empty = Text("No round yet. One is decided as soon as there is a job, if a scheduler runs.")
    table = render_decisions.rounds_table(found, cli.now()) if found else empty
    cli.show(output, Page[RoundView](items=found), table)


def policy(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="policy to follow; none: show what there is")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a parameter of the policy; repeatable"),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the policy that decides who gets what, or follow another from the next round on.

    A policy that is named starts from its own parameters; --set without a name changes the present one's.

    Examples: headway policy; headway policy srtf; headway policy budget --set usd_per_h=12
    """
    cli = of(context)
    changes = dict(_parameter(each) for each in set_ or [])
    with cli.connect() as client:
        if name is None and not changes:
            view = client.cluster()
            cli.show(output, view, render_decisions.policy_page(view))
            return
        if name is None:
            present = client.cluster()
            name, changes = present.policy, {**present.parameters, **changes}
        view = client.set_policy(name, changes)
    chosen = next((one for one in view.policies if one.name == view.policy), None)
    said = Text.assemble("The cluster follows ", (view.policy, "bold"), " from the next round on.")
    rest = [render_decisions.parameters_table(chosen)] if chosen is not None and chosen.parameters else []
    cli.show(output, view, Group(said, *rest))


def _parameter(text: str) -> tuple[str, ParameterValue]:
    key, equals, value = text.partition("=")
    try:
        numbers = [float(part) for part in value.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not all(math.isfinite(number) for number in numbers):
        numbers = []
    if not equals or not key or not numbers:
        raise HeadwayError(
            f"--set {text}: not of the form key=number.", "Write it like --set usd_per_h=12; a list as 1,2."
        )
    return key.strip(), numbers if "," in value else numbers[0]
