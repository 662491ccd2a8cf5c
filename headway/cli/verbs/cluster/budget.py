"""The verbs about spending: budgets and usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Group
from rich.text import Text

from headway.cli.context import Cli, Format, Output, invalid, of
from headway.cli.render import money as render_money
from headway.contract.values.quantities import duration_s
from headway.contract.views.jobs import Page
from headway.contract.views.money import BudgetKind, BudgetRequest, BudgetView, GroupBy, LeaseBill, Period
from headway.errors import HeadwayError

budget = typer.Typer(no_args_is_help=False, help="Show budgets and their spending; set or remove a budget.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the budget")]


@budget.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    """Show budgets and their spending; set or remove a budget.

    Examples: headway budget; headway budget set vision-daily --usd 100 --per day --project vision --hard
    """
    if context.invoked_subcommand is None:
        _show(of(context), Format.TABLE)


@budget.command("list")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Show all budgets with their spending."""
    _show(of(context), output)


def _show(cli: Cli, output: Format) -> None:
    with cli.connect() as client:
        found = client.budgets()
    empty = Text("No budgets. Set one: headway budget set NAME --usd 100 --per day")
    cli.show(output, Page[BudgetView](items=found), render_money.budgets_table(found) if found else empty)


@budget.command("set")
def set_(
    context: typer.Context,
    name: _Name,
    usd: Annotated[float, typer.Option(help="dollars per period with --per, otherwise per hour")],
    per: Annotated[Period | None, typer.Option(help="budget for each day, week or month (UTC)")] = None,
    hourly: Annotated[bool, typer.Option("--hourly", help="cap on dollars per hour at any time")] = False,
    long_run: Annotated[
        bool, typer.Option("--long-run", help="target for the average dollars per hour in the long run")
    ] = False,
    project: Annotated[
        str | None, typer.Option(help="project of the budget; default: the whole cluster")
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="hard: jobs stop at the limit; soft: only a warning")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Set a budget, which applies from the next round on. Setting it again changes it.

    Examples: headway budget set daily --usd 100 --per day --hard;
    headway budget set cap --usd 12 --hourly --hard; headway budget set average --usd 8 --long-run
    """
    if (per is not None) + hourly + long_run != 1:
        raise HeadwayError("A budget has exactly one kind.", "Give one of --per, --hourly and --long-run.")
    kind = BudgetKind.HOURLY_CAP if hourly else BudgetKind.LONG_RUN if long_run else BudgetKind.PERIOD
    try:
        wanted = BudgetRequest(kind=kind, usd=usd, period=per, project=project, hard=hard)
    except ValidationError as error:
        raise invalid(error, "budget set") from None
    cli = of(context)
    with cli.connect() as client:
        view = client.set_budget(name, wanted)
    cli.show(output, view, Group(Text(f"{view.name}: {view.message}"), render_money.budgets_table([view])))


@budget.command("rm")
def remove(context: typer.Context, name: _Name) -> None:
    """Remove a budget. Jobs that it held back continue."""
    cli = of(context)
    with cli.connect() as client:
        client.delete_budget(name)
    cli.out.print(f"{name} is removed.")


def usage(
    context: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="start: 24h or 7d ago, or 2026-12-01; default: the start of the month"
        ),
    ] = None,
    by: Annotated[GroupBy, typer.Option(help="grouping of the rows")] = GroupBy.PROJECT,
    project: Annotated[str | None, typer.Option(help="show only this project")] = None,
    machines: Annotated[
        bool, typer.Option("--machines", help="show rented machines, as billed and as charged")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show spending, split into useful work, resizes, lost work and idle time.

    Examples: headway usage --since 7d --by job; headway usage --machines
    """
    cli = of(context)
    begin = None if since is None else since_of(since, cli.now())
    with cli.connect() as client:
        if machines:
            bills = client.machine_bills(since=begin)
            none = Text("No machine was rented in this period.")
            table = render_money.bills_table(bills) if bills else none
            cli.show(output, Page[LeaseBill](items=bills), table)
            return
        view = client.usage(since=begin, by=by, project=project)
    cli.show(output, view, render_money.usage_page(view))


def since_of(text: str, now: datetime) -> datetime:
    """Parse a time that a user wrote: a duration before `now`, or a date.

    Raise HeadwayError if it is neither.
    """
    try:
        return now - timedelta(seconds=duration_s(text))
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise HeadwayError(
            f"--since {text}: neither a duration nor a date.", "Write it like 24h, 7d or 2026-12-01."
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
