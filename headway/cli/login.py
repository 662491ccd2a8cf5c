"""`headway login` and `headway whoami`. A token comes from a prompt or the standard input, never from the command line, which
others see.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import httpx
import typer
from rich.text import Text

from headway._tls import trusted_by
from headway.cli.config import home, save_target, target
from headway.cli.context import Cli, Format, Output, of
from headway.cli.device_flow import Confirmation, sign_in
from headway.cli.render_access import roles_text, until_text
from headway.contract.identity import WhoAmI
from headway.errors import HeadwayError


def login(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="of the service; default: the one used so far")
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="paste a token, or send one to the standard input")
    ] = False,
) -> None:
    """Sign in to a service, in a browser where it knows an identity provider, else with a token. Later commands use it.

    Examples: headway login https://headway.example.com; headway login --token < token.txt
    """
    cli = of(context)
    url = (url or target(os.environ).url).rstrip("/")
    found = _pasted() if token or not sys.stdin.isatty() else _signed_in(cli, url)
    with cli.connect_to(url, found) as client:
        me = client.whoami()
    file = save_target(home(os.environ), url, found)
    cli.out.print(Text(f"Signed in to {url} as {_sentence(cli, me)} The token is in {file}."), soft_wrap=True)
    if os.environ.get("HEADWAY_TOKEN"):
        cli.err.print("HEADWAY_TOKEN is set, and goes before this: unset it.", style="yellow")


def _signed_in(cli: Cli, url: str) -> str:
    """A token of whoever signs in at the provider that the service knows; a pasted one where it knows none."""
    with cli.connect_to(url, "") as client:
        ways = client.sign_in_ways()
        if ways.issuer is None:
            cli.err.print("An admin makes tokens: headway token create NAME. Paste yours.")
            return _pasted()
        with httpx.Client(verify=trusted_by(os.environ), timeout=30.0) as provider:
            id_token = sign_in(provider, ways, lambda wanted: _ask(cli, wanted))
        return client.sign_in(id_token, f"login on {socket.gethostname()}").token


def _ask(cli: Cli, wanted: Confirmation) -> None:
    where = wanted.complete_url or wanted.url
    cli.err.print(Text(f"Open {where}\nin a browser, and confirm the code {wanted.code}"), soft_wrap=True)


def _pasted() -> str:
    watched = sys.stdin.isatty()
    found = str(typer.prompt("Token", hide_input=True)) if watched else sys.stdin.read()
    if not found.strip():
        raise HeadwayError("No token was given.", "Paste one at the prompt, or: headway login --token < FILE")
    return found.strip()


def whoami(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Show whose token is used, what it may do where, and until when."""
    cli = of(context)
    with cli.connect() as client:
        me = client.whoami()
        cli.show(output, me, Text(f"{client.url}: {_sentence(cli, me)}"))


def _sentence(cli: Cli, me: WhoAmI) -> str:
    may = roles_text(me.roles) or "without a role yet: an admin gives you one (headway project add-member)"
    return f"{me.name}, {may}; the token works {until_text(me.expires_at, cli.now())}."
