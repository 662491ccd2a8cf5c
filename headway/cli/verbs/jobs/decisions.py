"""The verbs about scheduling decisions: explanations, rounds, the policy and forecasts."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from headway.cli.context import Format, JobFile, JobName, Output, OwnProject, ProjectName, Replacements, of
from headway.cli.render import decisions as render_decisions
from headway.cli.verbs.jobs.reading import job_of
from headway.contract.views.decisions import ParameterValue, RoundView
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError


def plan(
    context: typer.Context,
    file: JobFile,
    set_: Replacements = None,
    project: OwnProject = None,
    output: Output = Format.TABLE,
) -> None:
    """Forecast the time and cost of a job file at every size. Nothing is submitted.

    Example: headway plan job.yaml --set elastic.max=8
    """
    cli = of(context)
    spec = job_of(cli, file, set_, answer_warns=True)
    with cli.connect_in(project) as client:
        view = client.plan(spec)
    cli.show(output, view, render_decisions.plan_page(view))


def forecast(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Forecast when a job will end and what it will cost, at every size it could have.

    Example: headway forecast digits
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        view = client.forecast(job)
    cli.show(output, view, render_decisions.forecast_page(view))


def explain(
    context: typer.Context, job: JobName, project: ProjectName = None, output: Output = Format.TABLE
) -> None:
    """Explain why a job has its size, or why it waits, and what another slot would be worth to it.

    Example: headway explain digits
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        explained = client.explain(job)
    cli.show(output, explained, render_decisions.explain_page(explained, cli.now()))


def rounds(
    context: typer.Context,
    round_: Annotated[
        str | None, typer.Argument(metavar="ROUND", help="id of a round, or latest; default: list rounds")
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
    empty = Text("No rounds yet. The scheduler decides the first round once there is a job.")
    table = render_decisions.rounds_table(found, cli.now()) if found else empty
    cli.show(output, Page[RoundView](items=found), table)


def policy(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="policy to follow; default: show the policies")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a parameter of the policy; repeatable"),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the scheduling policy and its parameters, or change them from the next round on.

    A named policy starts from its default parameters. Without a name, --set changes parameters of the present
    policy.

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
    text = Text.assemble("The cluster follows ", (view.policy, "bold"), " from the next round on.")
    rest = [render_decisions.parameters_table(chosen)] if chosen is not None and chosen.parameters else []
    cli.show(output, view, Group(text, *rest))


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
