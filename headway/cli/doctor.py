"""`headway doctor`: what is well on this machine and with the service, what is not, what to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import typer
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from headway.cli.config import home
from headway.cli.context import Cli, Format, Output, of
from headway.client import ApiError, Client
from headway.contract.agents import NodeState
from headway.errors import HeadwayError
from headway.local import postgres, redis

_LITTLE_DISK_BYTES = 5 * 2**30
_NO_DISK_BYTES = 200 * 2**20
_CLOCK_LIMIT_S = 5.0


class Level(StrEnum):
    """`warn` can wait, `fail` cannot."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """One thing that was looked at. `hint` says what to do when it is not well."""

    name: str
    level: Level
    found: str
    hint: str = ""


class Report(BaseModel):
    """All of them."""

    checks: list[Check]


def doctor(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Check this machine and the service; exit 1 when something must be mended."""
    cli = of(context)
    report = Report(checks=[*machine_checks(os.environ), *service_checks(cli)])
    styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    table = Table.grid(padding=(0, 2))
    for check in report.checks:
        said = Text(check.found)
        if check.level is not Level.OK:
            said.append(f" {check.hint}")
        table.add_row(Text(check.level, style=styles[check.level]), check.name, said)
    cli.show(output, report, table)
    if any(check.level is Level.FAIL for check in report.checks):
        raise typer.Exit(1)


def machine_checks(env: Mapping[str, str]) -> Iterator[Check]:
    """What `headway up` and a job need of this machine."""
    yield Check(name="python", level=Level.OK, found=sys.version.split()[0])
    yield _torch()
    if env.get("HEADWAY_DATABASE_URL"):
        yield Check(name="postgres", level=Level.OK, found="HEADWAY_DATABASE_URL is set.")
    else:
        yield _binary("postgres", lambda: str(postgres.find_binaries()))
    if env.get("HEADWAY_REDIS_URL"):
        yield Check(name="redis", level=Level.OK, found="HEADWAY_REDIS_URL is set.")
    else:
        yield _binary("redis", redis.find_binary)
    yield disk_check(home(env))


def disk_check(folder: Path) -> Check:
    """Whether there is room for checkpoints on the disk that a folder is, or would be, on."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / 2**30:.1f} GiB free for {folder}."
    level = Level.FAIL if free < _NO_DISK_BYTES else Level.WARN if free < _LITTLE_DISK_BYTES else Level.OK
    return Check(
        name="disk", level=level, found=found, hint="Make room, or set HEADWAY_HOME to another disk."
    )


def service_checks(cli: Cli) -> Iterator[Check]:
    """Whether the service can be reached, lets us in, and has nodes to train on."""
    try:
        with cli.connect() as client:
            yield from _look_at(client)
    except ApiError as error:
        level = Level.FAIL
        yield Check(
            name="token" if error.problem.status == 401 else "service",
            level=level,
            found=error.what,
            hint=error.hint,
        )
    except HeadwayError as error:
        yield Check(name="service", level=Level.FAIL, found=error.what, hint=error.hint)


def _look_at(client: Client) -> Iterator[Check]:
    theirs, ours = client.version(), installed_version("headway")
    yield Check(name="service", level=Level.OK, found=f"{client.url} answers.")
    yield Check(
        name="version",
        level=Level.OK if theirs == ours else Level.WARN,
        found=f"This program is {ours}, the service {theirs}.",
        hint="Install the same version on both sides.",
    )
    yield Check(
        name="stores",
        level=Level.OK if client.ready() else Level.FAIL,
        found="The service reaches its stores."
        if client.ready()
        else "The service does not reach its stores.",
        hint=f"See {client.url}/readyz and the log of the API.",
    )
    ahead = client.clock_ahead_s()
    yield Check(
        name="clock",
        level=Level.OK if abs(ahead) <= _CLOCK_LIMIT_S else Level.WARN,
        found=f"The service's clock and ours agree to {abs(ahead):.0f} s.",
        hint="Let both hosts follow a time server (NTP).",
    )
    nodes = list(client.nodes())
    yield Check(name="token", level=Level.OK, found="The service accepts it.")
    ready = sum(node.state is NodeState.READY for node in nodes)
    yield Check(
        name="nodes",
        level=Level.OK if ready and ready == len(nodes) else Level.WARN,
        found=f"{ready} of {len(nodes)} are READY.",
        hint="See `headway nodes`." if nodes else "Add one: headway agent --url URL --token JOIN_TOKEN",
    )


def _torch() -> Check:
    try:
        return Check(name="torch", level=Level.OK, found=installed_version("torch"))
    except PackageNotFoundError:
        hint = "Jobs that run here need it: pip install 'headway[train]'."
        return Check(name="torch", level=Level.WARN, found="Not installed.", hint=hint)


def _binary(name: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name=name, level=Level.OK, found=find())
    except HeadwayError as error:
        return Check(
            name=name, level=Level.WARN, found=error.what, hint=f"{error.hint} `headway up` needs it."
        )
