"""The verbs `headway login` and `headway whoami`.

A token comes from a prompt or the standard input, never from the command line, which other users of the
machine can read.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import httpx
import typer
from rich.text import Text

from headway.cli.context import Cli, Format, Output, of
from headway.cli.device_flow import Confirmation, sign_in
from headway.cli.render.access import roles_text, until_text
from headway.client.target import home, save_target, target
from headway.contract.views.identity import WhoAmI
from headway.errors import HeadwayError
from headway.proxies import naming, proxy_for
from headway.tls import trusted_by


def login(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="URL of the service; default: the present one")
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="paste a token, or send it to the standard input")
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser", help="sign a browser in to the console as your present user")
    ] = False,
) -> None:
    """Sign in to a service, through its identity provider or with a token, for later commands.

    A service without an identity provider needs a token. With --browser, a command line that is signed in
    prints a link that signs a browser in once.

    Examples: headway login https://headway.example.com; headway login --token < token.txt;
    headway login --browser
    """
    cli = of(context)
    if browser:
        if url is not None or token:
            raise HeadwayError(
                "--browser uses the token that this command line has.", "Leave out the URL and --token."
            )
        _sign_browser_in(cli)
        return
    url = (url or target(os.environ).url).rstrip("/")
    found = _read_token() if token or not sys.stdin.isatty() else _sign_in_at(cli, url)
    with cli.connect_to(url, found) as client:
        me = client.whoami()
    file = save_target(home(os.environ), url, found)
    cli.out.print(Text(f"Signed in to {url} as {_describe(cli, me)} The token is in {file}."), soft_wrap=True)
    if os.environ.get("HEADWAY_TOKEN"):
        cli.err.print("HEADWAY_TOKEN is set and takes precedence over this token. Unset it.", style="yellow")


def _sign_browser_in(cli: Cli) -> None:
    with cli.connect() as client:
        link = client.create_sign_in_link()
    opened = cli.browse(link.url)
    left = until_text(link.expires_at, cli.now())
    first = (
        "A browser opens. If none does, open this link in one" if opened else "Open this link in a browser"
    )
    cli.err.print(f"{first}; it works once, {left}:", soft_wrap=True)
    cli.out.print(Text(link.url), soft_wrap=True)


def _sign_in_at(cli: Cli, url: str) -> str:
    """Return a token from the service's identity provider, or a pasted one if the service has no provider."""
    with cli.connect_to(url, "") as client:
        settings = client.sign_in_settings()
        if settings.issuer is None:
            cli.err.print(
                "The service has no identity provider. Paste a token; an admin creates one: headway token create NAME"
            )
            return _read_token()
        proxy = proxy_for(settings.issuer, os.environ)
        with naming(proxy, settings.issuer):
            provider = httpx.Client(
                verify=trusted_by(os.environ),
                timeout=30.0,
                proxy=proxy.address if proxy else None,
                trust_env=False,
            )
        with provider:
            id_token = sign_in(provider, settings, lambda wanted: _show_code(cli, wanted))
        return client.sign_in(id_token, f"login on {socket.gethostname()}").token


def _show_code(cli: Cli, wanted: Confirmation) -> None:
    where = wanted.complete_url or wanted.url
    cli.err.print(Text(f"Open {where}\nin a browser, and confirm the code {wanted.code}"), soft_wrap=True)


def _read_token() -> str:
    watched = sys.stdin.isatty()
    found = str(typer.prompt("Token", hide_input=True)) if watched else sys.stdin.read()
    if not found.strip():
        raise HeadwayError("No token was given.", "Paste one at the prompt, or: headway login --token < FILE")
    return found.strip()


def whoami(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Show the user of the present token, its roles and its expiry."""
    cli = of(context)
    with cli.connect() as client:
        me = client.whoami()
        cli.show(output, me, Text(f"{client.url}: {_describe(cli, me)}"))


def _describe(cli: Cli, me: WhoAmI) -> str:
    may = roles_text(me.roles) or "without a role yet: an admin gives you one (headway project add-member)"
    return f"{me.name}, {may}; the token works {until_text(me.expires_at, cli.now())}."
