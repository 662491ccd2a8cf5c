"""The verbs about the tokens that agents join with."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from headway.cli.context import Format, Output, invalid, of, print_json, to_json
from headway.cli.render.jobs import columns
from headway.contract.values.quantities import duration, duration_s
from headway.contract.views.identity import JoinTokenRequest, JoinTokenView
from headway.contract.views.jobs import Page
from headway.errors import HeadwayError

join_token = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke the tokens that agents join with."
)


@join_token.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="purpose of the token, shown in lists")] = "",
    uses: Annotated[int, typer.Option(min=1, help="number of agents that may join with it")] = 1,
    expires: Annotated[str, typer.Option(metavar="TIME", help="lifetime: 1h, 7d")] = "1d",
    output: Output = Format.TABLE,
) -> None:
    """Create a join token and show it once. An agent that has joined reconnects without a token.

    Examples: headway join-token create; headway join-token create rack-7 --uses 16 --expires 2h
    """
    cli = of(context)
    try:
        expires_in_s = duration_s(expires)
    except ValueError:
        raise HeadwayError(f"--expires {expires}: not a duration.", "Write it like 1h or 7d.") from None
    try:
        wanted = JoinTokenRequest(name=name, uses=uses, expires_in_s=expires_in_s)
    except ValidationError as error:
        raise invalid(error, "join-token create") from None
    with cli.connect() as client:
        made = client.create_join_token(wanted)
        url = client.url
    if output is Format.JSON:
        print_json(to_json(made))
        return
    many = "once" if made.uses_left == 1 else f"{made.uses_left} times"
    left = duration((made.expires_at - made.created_at).total_seconds())
    cli.err.print(f"Join token {made.id} works {many}, for {left}. It is shown only now:")
    cli.out.print(made.token, soft_wrap=True)
    cli.err.print(
        f"On the host: export HEADWAY_JOIN_TOKEN=…; headway agent --url {url}", soft_wrap=True, markup=False
    )


@join_token.command("ls")
def list_(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List join tokens that work, and those that expired within the last seven days."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.join_tokens())
    empty = Text("No join tokens. Make one: headway join-token create")
    cli.show(output, Page[JoinTokenView](items=found), _table(found, cli.now()) if found else empty)


@join_token.command("revoke")
def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="id from `headway join-token ls`")],
) -> None:
    """Revoke a join token, so that no further agent can join with it. Agents that have joined stay."""
    cli = of(context)
    with cli.connect() as client:
        client.revoke_join_token(token_id)
    cli.out.print(f"{token_id} is revoked.")


def _table(tokens: list[JoinTokenView], now: datetime) -> Table:
    table = columns("ID", "NAME", "USES LEFT", "WORKS", "BY")
    for one in tokens:
        left_s = (one.expires_at - now).total_seconds()
        works = "used up" if one.uses_left == 0 else f"for {duration(left_s)}" if left_s > 0 else "expired"
        table.add_row(one.id, one.name or "-", str(one.uses_left), works, one.created_by)
    return table
