"""The verbs about tokens."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from headway.cli.context import Format, Output, of, to_json
from headway.cli.render_access import tokens_table, until_text
from headway.contract.identity import EVERYWHERE, Role, TokenRequest, TokenView
from headway.contract.jobs import Page
from headway.contract.quantities import parse_duration_s
from headway.errors import HeadwayError

token = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens.")


@token.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what it is for, as it is listed")],
    role: Annotated[Role | None, typer.Option(help="the most that it may; none: all that you may")] = None,
    project: Annotated[str, typer.Option("--project", "-p", help="where alone it may do it")] = EVERYWHERE,
    robot: Annotated[
        bool, typer.Option("--robot", help="for a program: it belongs to nobody, and needs --role")
    ] = False,
    expires: Annotated[str, typer.Option(metavar="TIME", help="it works for so long: 90d, 12h")] = "30d",
    output: Output = Format.TABLE,
) -> None:
    """Make a token, and show it this once.

    Examples: headway token create laptop; headway token create ci --robot --role user --project vision --expires 90d
    """
    cli = of(context)
    try:
        wanted = TokenRequest(
            name=name,
            role=role,
            project=project,
            robot=robot,
            expires_in_s=float(str(parse_duration_s(expires))),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise HeadwayError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}", "See: headway token create --help."
        ) from None
    except ValueError:
        raise HeadwayError(
            f"--expires {expires}: no duration.", "Write it like 12h or 90d, a year at most."
        ) from None
    with cli.connect() as client:
        made = client.create_token(wanted)
    if output is Format.JSON:
        typer.echo(to_json(made))
        return
    cli.err.print(f"Token {made.id} works {until_text(made.expires_at, cli.now())}. It is shown this once:")
    cli.out.print(made.token, soft_wrap=True)


@token.command("ls")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List tokens that work: yours, and robots' of projects whose admin you are. Admins everywhere see all."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.tokens())
    empty = Text("No tokens. Make one: headway token create NAME")
    cli.show(output, Page[TokenView](items=found), tokens_table(found, cli.now()) if found else empty)


@token.command("revoke")
def revoke(
    context: typer.Context,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="of the token, as `headway token ls` shows it")
    ],
) -> None:
    """Have a token work no more, from now on, nor those that were made with it (MADE WITH in `headway token ls`). Revoking the token
    that you show yourself leaves those that you made.
    """
    cli = of(context)
    with cli.connect() as client:
        client.revoke_token(token_id)
    cli.out.print(f"{token_id} is revoked.")
