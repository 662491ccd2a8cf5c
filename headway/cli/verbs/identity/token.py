"""The verbs about API tokens."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from headway.cli.context import Format, Output, invalid, of, print_json, to_json
from headway.cli.render.access import tokens_table, until_text
from headway.contract.values.quantities import duration_s
from headway.contract.views.identity import EVERYWHERE, Role, TokenRequest, TokenView
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError

token = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")


@token.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="purpose of the token, shown in lists")],
    role: Annotated[
        Role | None, typer.Option(help="highest role of the token; default: all of your roles")
    ] = None,
    project: Annotated[
        str, typer.Option("--project", "-p", help="project to which the token is limited; * for all")
    ] = EVERYWHERE,
    robot: Annotated[
        bool, typer.Option("--robot", help="token of a program instead of a user; needs --role")
    ] = False,
    expires: Annotated[str, typer.Option(metavar="TIME", help="lifetime: 90d, 12h")] = "30d",
    output: Output = Format.TABLE,
) -> None:
    """Create a token and show it once.

    Examples: headway token create laptop;
    headway token create ci --robot --role user --project vision --expires 90d
    """
    cli = of(context)
    try:
        wanted = TokenRequest(
            name=name,
            role=role,
            project=project,
            robot=robot,
            expires_in_s=duration_s(expires),
        )
    except ValidationError as error:
        raise invalid(error, "token create") from None
    except ValueError:
        raise HeadwayError(
            f"--expires {expires}: not a duration.", "Write it like 12h or 90d; at most one year."
        ) from None
    with cli.connect() as client:
        made = client.create_token(wanted)
    if output is Format.JSON:
        print_json(to_json(made))
        return
    cli.err.print(f"Token {made.id} works {until_text(made.expires_at, cli.now())}. It is shown only now:")
    cli.out.print(made.token, soft_wrap=True)


@token.command("ls")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List working tokens: yours, and those of robots in projects that you administer.

    Admins of the whole service see all tokens.
    """
    cli = of(context)
    with cli.connect() as client:
        found = list(client.tokens())
    empty = Text("No tokens. Create one: headway token create NAME")
    cli.show(output, Page[TokenView](items=found), tokens_table(found, cli.now()) if found else empty)


@token.command("revoke")
def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="id of the token, from `headway token ls`")],
) -> None:
    """Revoke a token, and the tokens that were created with it (MADE WITH in `headway token ls`).

    Revoking the token that you are using keeps the tokens that were created with it.
    """
    cli = of(context)
    with cli.connect() as client:
        client.revoke_token(token_id)
    cli.out.print(f"{token_id} is revoked.")
