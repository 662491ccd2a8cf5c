"""The verbs about users, for admins of the whole service."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from headway.cli.context import Format, Output, of
from headway.cli.render.access import users_table
from headway.contract.views.identity import Role, UserPatch, UserRequest, UserView
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError

user = typer.Typer(no_args_is_help=True, help="Add, disable and remove users (admins).")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="e-mail address or user name at the sign-in")]


@user.command("add")
def add(
    context: typer.Context,
    name: _Name,
    role: Annotated[Role | None, typer.Option(help="role in all projects; default: none")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Add a user, who may then sign in, or set the global role of a known user.

    Examples: headway user add alice@example.com; headway user add bob --role operator
    """
    cli = of(context)
    try:
        wanted = UserRequest(name=name, role=role)
    except ValidationError:
        raise HeadwayError(
            f"{name!r} is not a user name.",
            "Give an e-mail address or a user name without spaces and slashes.",
        ) from None
    with cli.connect() as client:
        known = next((one for one in client.users() if one.name == name), None)
        if known is None:
            view = client.add_user(wanted)
        elif role is None:
            view = known
        else:
            view = client.change_user(name, UserPatch(role=role))
    cli.show(output, view, users_table([view], cli.now()))
    if known is None and output is Format.TABLE and role is None:
        cli.err.print(
            f"{name} has no role yet. Add one: headway project add-member PROJECT {name} --role user"
        )


@user.command("ls")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List all users with their roles."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.users())
    empty = Text("No users. Add one: headway user add NAME")
    cli.show(output, Page[UserView](items=found), users_table(found, cli.now()) if found else empty)


@user.command("disable")
def disable(context: typer.Context, name: _Name) -> None:
    """Disable a user: none of their tokens works until they are enabled. Their jobs continue."""
    cli = of(context)
    with cli.connect() as client:
        client.change_user(name, UserPatch(disabled=True))
    cli.out.print(f"{name} is disabled. To enable: headway user enable {name}", soft_wrap=True)


@user.command("enable")
def enable(context: typer.Context, name: _Name) -> None:
    """Enable a disabled user, with the roles and tokens that they had."""
    cli = of(context)
    with cli.connect() as client:
        client.change_user(name, UserPatch(disabled=False))
    cli.out.print(f"{name} is enabled.")


@user.command("rm")
def remove(context: typer.Context, name: _Name) -> None:
    """Remove a user with their roles and tokens. Their jobs continue."""
    cli = of(context)
    with cli.connect() as client:
        client.delete_user(name)
    cli.out.print(f"{name} is removed.")
