"""The verbs about projects and their members."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from headway.cli.context import Format, Output, invalid, of
from headway.cli.render.access import project_page, projects_table
from headway.contract.views.identity import ProjectQuota, ProjectRequest, ProjectView, Role
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError

project = typer.Typer(
    no_args_is_help=True, help="Create and change projects, their members and their quotas."
)

_Name = Annotated[str, typer.Argument(metavar="PROJECT", help="name of the project")]
_User = Annotated[str, typer.Argument(metavar="USER", help="name of the user, as `headway user ls` shows it")]
_Description = Annotated[str | None, typer.Option(help="short description of the project")]
_Slots = Annotated[int | None, typer.Option(min=0, help="guaranteed slots; other projects may borrow them")]
_MaxSlots = Annotated[int | None, typer.Option(min=0, help="maximum number of slots, borrowed ones included")]
_Usd = Annotated[
    float | None, typer.Option(min=0, help="limit on the cost of its jobs in a month, in dollars")
]
_Weight = Annotated[
    float | None, typer.Option(help="weight in sharing slots that are not guaranteed; default: 1")
]
_LIMITS = {"slots": "slots", "max-slots": "max_slots", "usd-per-month": "usd_per_month"}


def _quota(
    slots: int | None, max_slots: int | None, usd_per_month: float | None, weight: float | None
) -> dict[str, float | None]:
    given = {"slots": slots, "max_slots": max_slots, "usd_per_month": usd_per_month, "weight": weight}
    return {name: value for name, value in given.items() if value is not None}


@project.command("create")
def create(
    context: typer.Context,
    name: _Name,
    description: _Description = None,
    slots: _Slots = None,
    max_slots: _MaxSlots = None,
    usd_per_month: _Usd = None,
    weight: _Weight = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a project. Only admins of the whole service may.

    Example: headway project create vision --slots 16 --max-slots 64 --usd-per-month 5000
    """
    cli = of(context)
    try:
        quota = ProjectQuota.model_validate(_quota(slots, max_slots, usd_per_month, weight))
        wanted = ProjectRequest(description=description or "", quota=quota)
    except ValidationError as error:
        raise invalid(error, "project set") from None
    with cli.connect() as client:
        view = client.create_project(name, wanted)
    cli.show(output, view, project_page(view))


@project.command("ls")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List your projects with the slots that they hold and their quotas."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.projects())
    empty = Text("You are in no project. An admin can add you: headway project add-member PROJECT NAME")
    cli.show(output, Page[ProjectView](items=found), projects_table(found) if found else empty)


@project.command("show")
def show(context: typer.Context, name: _Name, output: Output = Format.TABLE) -> None:
    """Show a project with its members."""
    cli = of(context)
    with cli.connect() as client:
        view = client.project(name)
    cli.show(output, view, project_page(view))


@project.command("set")
def set_(
    context: typer.Context,
    name: _Name,
    description: _Description = None,
    slots: _Slots = None,
    max_slots: _MaxSlots = None,
    usd_per_month: _Usd = None,
    weight: _Weight = None,
    no: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help=f"lift a limit: {', '.join(_LIMITS)}; repeatable"),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Change a project's description, or its quota (admins of the whole service). Other values stay.

    Examples: headway project set vision --slots 32; headway project set vision --no max-slots
    """
    cli = of(context)
    unknown = [one for one in no or () if one not in _LIMITS]
    if unknown:
        raise HeadwayError(f"--no {unknown[0]}: no such limit.", f"Limits: {', '.join(_LIMITS)}.")
    quota = _quota(slots, max_slots, usd_per_month, weight) | {_LIMITS[one]: None for one in no or ()}
    if not quota and description is None:
        raise HeadwayError("Nothing to set.", "Give an option; see: headway project set --help.")
    try:
        with cli.connect() as client:
            view = client.change_project(name, description=description, quota=quota)
    except ValidationError as error:
        raise invalid(error, "project set") from None
    cli.show(output, view, project_page(view))


@project.command("rm")
def remove(context: typer.Context, name: _Name) -> None:
    """Remove a project with its members, secrets and robot tokens. Its jobs must have ended."""
    cli = of(context)
    with cli.connect() as client:
        client.delete_project(name)
    cli.out.print(f"{name} is removed.")


@project.command("add-member")
def add_member(
    context: typer.Context,
    name: _Name,
    user: _User,
    role: Annotated[Role, typer.Option(help="role of the user in the project")] = Role.USER,
    output: Output = Format.TABLE,
) -> None:
    """Give a user a role in a project; it replaces the user's present role there.

    Example: headway project add-member vision alice@example.com --role admin
    """
    cli = of(context)
    with cli.connect() as client:
        view = client.set_member(name, user, role)
    cli.show(output, view, project_page(view))


@project.command("rm-member")
def remove_member(context: typer.Context, name: _Name, user: _User) -> None:
    """Remove a user from a project. Their jobs continue."""
    cli = of(context)
    with cli.connect() as client:
        client.remove_member(name, user)
    cli.out.print(f"{user} is no longer a member of {name}.", soft_wrap=True)
