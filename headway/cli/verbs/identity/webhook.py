"""The verbs about webhooks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from headway.cli.context import Cli, Format, Output, of
from headway.contract.views.jobs import Page
from headway.contract.views.webhooks import (
    DeliveryState,
    DeliveryView,
    Topic,
    WebhookChange,
    WebhookFormat,
    WebhookRequest,
    WebhookSecret,
    WebhookView,
)
from headway.errors import HeadwayError

webhook = typer.Typer(
    no_args_is_help=True, help="Send messages about a project's jobs to other systems by HTTP."
)

_Request = TypeVar("_Request", WebhookRequest, WebhookChange)
_TEST_TIMEOUT_S = 20.0
_LOOK_EVERY_S = 0.5
_Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the webhook in its project")]
_Url = Annotated[str, typer.Argument(metavar="URL", help="address of the receiver")]
_Project = Annotated[
    str, typer.Option("--project", "-p", envvar="HEADWAY_PROJECT", help="project of the webhook")
]
_Topics = Annotated[
    list[Topic] | None, typer.Option("--on", help="type of message to send; repeat it for several")
]
_Format = Annotated[WebhookFormat | None, typer.Option("--format", help="format of the messages")]


@webhook.command("add")
def add(
    context: typer.Context,
    name: _Name,
    url: _Url,
    project: _Project = "default",
    on: _Topics = None,
    form: _Format = None,
) -> None:
    """Create a webhook, and print its secret, which is never shown again.

    Examples: headway webhook add ci https://ci.example.com/hooks --on job.failed; headway webhook add chat URL --format slack
    """
    cli = of(context)
    fields = {"name": name, "url": url, "topics": on, "format": form}
    wanted = _checked(WebhookRequest, {key: value for key, value in fields.items() if value})
    with cli.connect() as client:
        made = client.create_webhook(project, wanted)
    _print_secret(cli, made)


@webhook.command("ls")
def list_(context: typer.Context, project: _Project = "default", output: Output = Format.TABLE) -> None:
    """List the webhooks of a project."""
    cli = of(context)
    with cli.connect() as client:
        found = client.webhooks(project)
    empty = Text(
        f"Project {project} has no webhooks. Add one: headway webhook add NAME URL --project {project}"
    )
    cli.show(output, Page[WebhookView](items=found), _webhooks(found) if found else empty)


@webhook.command("set")
def set_(
    context: typer.Context,
    name: _Name,
    project: _Project = "default",
    url: Annotated[str | None, typer.Option("--url", help="new address of the receiver")] = None,
    on: _Topics = None,
    form: _Format = None,
) -> None:
    """Change the receiver, the types or the format of the messages."""
    fields = {"url": url, "topics": on, "format": form}
    given = {key: value for key, value in fields.items() if value}
    if not given:
        raise HeadwayError("Nothing is to be changed.", "Give --url, --on or --format.")
    _change(context, project, name, _checked(WebhookChange, given), "is changed")


@webhook.command("disable")
def disable(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Send no messages, until the webhook is enabled. Messages about later events are lost."""
    _change(context, project, name, WebhookChange(enabled=False), "is disabled")


@webhook.command("enable")
def enable(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Send messages again, first those that wait."""
    _change(context, project, name, WebhookChange(enabled=True), "is enabled")


@webhook.command("rm")
def remove(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Delete a webhook with its messages, also those that wait."""
    cli = of(context)
    with cli.connect() as client:
        client.delete_webhook(project, name)
    cli.out.print(f"Webhook {name} is deleted from project {project}.")


@webhook.command("rotate")
def rotate(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Replace the secret, and print the new one. For a day, messages are signed with both."""
    cli = of(context)
    with cli.connect() as client:
        made = client.rotate_webhook_secret(project, name)
    _print_secret(cli, made)


@webhook.command("test")
def send_test(context: typer.Context, name: _Name, project: _Project = "default") -> None:
    """Send a test message, and print the receiver's answer. Exit with 1 if it is not delivered."""
    cli = of(context)
    deadline_s = time.monotonic() + _TEST_TIMEOUT_S
    with cli.connect() as client:
        sent = client.test_webhook(project, name)
        while sent.state is DeliveryState.WAITING and not sent.answer and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
            sent = next((one for one in client.deliveries(project, name) if one.id == sent.id), sent)
    if sent.state is not DeliveryState.DELIVERED:
        again = f"Look again: headway webhook deliveries {name} --project {project}"
        raise HeadwayError(f"The test message is not delivered: {_answer(sent) or 'no attempt yet'}.", again)
    cli.out.print(f"Delivered: the receiver answered {_answer(sent)}.")


@webhook.command("deliveries")
def deliveries(
    context: typer.Context, name: _Name, project: _Project = "default", output: Output = Format.TABLE
) -> None:
    """List the latest messages of a webhook with the answers to them."""
    cli = of(context)
    with cli.connect() as client:
        found = client.deliveries(project, name)
    empty = Text(f"No message yet. Send one: headway webhook test {name} --project {project}")
    cli.show(output, Page[DeliveryView](items=found), _deliveries(found) if found else empty)


def _change(context: typer.Context, project: str, name: str, change: WebhookChange, done: str) -> None:
    cli = of(context)
    with cli.connect() as client:
        view = client.change_webhook(project, name, change)
    cli.out.print(f"Webhook {view.name} {done}.")


def _checked(kind: type[_Request], fields: Mapping[str, object]) -> _Request:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        (first, *_) = error.errors()
        field = ".".join(str(part) for part in first["loc"])
        raise HeadwayError(f"{field}: {first['msg']}.", "Correct it and try again.") from None


def _print_secret(cli: Cli, made: WebhookSecret) -> None:
    view = made.webhook
    cli.out.print(
        f"Webhook {view.name} of project {view.project} sends to {view.address}. Its secret, shown only now:"
    )
    cli.out.print(Text(made.secret), soft_wrap=True)


def _answer(one: DeliveryView) -> str:
    return f"{one.status or ''} {one.answer}".strip()


def _webhooks(found: list[WebhookView]) -> Table:
    table = Table(
        "NAME", "STATE", "RECEIVER", "FORMAT", "WAITING", "TYPES", "MESSAGE", box=None, pad_edge=False
    )
    for one in found:
        state = "enabled" if one.enabled else "disabled"
        table.add_row(
            one.name,
            state,
            one.address,
            one.format,
            str(one.waiting),
            ", ".join(one.topics),
            Text(one.message),
        )
    return table


def _deliveries(found: list[DeliveryView]) -> Table:
    table = Table("ID", "TYPE", "EVENT AT", "STATE", "ATTEMPTS", "ANSWER", box=None, pad_edge=False)
    for one in found:
        at = f"{one.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
        table.add_row(one.id, one.topic, at, one.state, str(one.attempts), Text(_answer(one)[:80]))
    return table
