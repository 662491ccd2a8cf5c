"""The verb `headway doctor`, which checks this machine and the service.

For each problem it prints why it matters and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.text import Text

from headway.cli.context import Cli, Format, Output, of
from headway.cli.doctor_machine import machine_checks, redis_check
from headway.cli.doctor_selftest import self_test_checks
from headway.cli.render import hosts as render_hosts
from headway.client.client import ApiError, Client
from headway.contract.views.diagnosis import Check, Level
from headway.errors import HeadwayError

_CLOCK_LIMIT_S = 5.0


class DoctorReport(BaseModel):
    """The report of `headway doctor`: all checks in order."""

    checks: list[Check]


Gpu = Annotated[
    bool,
    typer.Option(
        "--gpu",
        help="Instead, train on the GPUs of this machine for two minutes: ranks join, leave, are killed and restart.",
    ),
]


Cluster = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="Instead, show all hosts of the cluster and the connections between them that fail or are slow.",
    ),
]


def doctor(
    context: typer.Context, gpu: Gpu = False, cluster: Cluster = False, output: Output = Format.TABLE
) -> None:
    """Check this machine, the service and its agents; exit with 1 if a check fails."""
    cli = of(context)
    if cluster:
        with cli.connect() as client:
            hosts = client.hosts()
        cli.show(output, hosts, render_hosts.hosts_table(hosts))
        if any(check.level is Level.FAIL for check in hosts.checks):
            raise typer.Exit(1)
        return
    checks = list(_gpu_checks(cli) if gpu else (*machine_checks(os.environ), *service_checks(cli)))
    nothing_wrong = {"why": "", "hint": ""}
    report = DoctorReport(
        checks=[one.model_copy(update=nothing_wrong if one.level is Level.OK else {}) for one in checks]
    )
    cli.show(output, report, render_hosts.checks_table(report.checks))
    if any(check.level is Level.FAIL for check in report.checks):
        raise typer.Exit(1)


def _gpu_checks(cli: Cli) -> Iterator[Check]:
    with cli.err.status(Text("training on the GPUs of this machine, for about two minutes")) as status:
        for check in self_test_checks():
            status.update(Text(f"{check.name}: {check.level}; training on"))
            yield check


def service_checks(cli: Cli) -> Iterator[Check]:
    """Yield the checks of the service: connection, token, version, clock, and its own diagnosis."""
    try:
        with cli.connect() as client:
            yield from _checks_of(client)
    except ApiError as error:
        name = "token" if error.problem.status == 401 else "service"
        yield Check(name=name, level=Level.FAIL, found=error.what, hint=error.hint)
    except HeadwayError as error:
        yield Check(name="service", level=Level.FAIL, found=error.what, hint=error.hint)


def _checks_of(client: Client) -> Iterator[Check]:
    theirs, ours = client.version(), installed_version("headway")
    yield Check(name="service", level=Level.OK, found=f"{client.url} answers.")
    yield Check(
        name="version",
        level=Level.OK if theirs == ours else Level.WARN,
        found=f"This program is {ours}, the service {theirs}.",
        why="A feature that only one of them has does not work.",
        hint=f"Install the same version here: pip install headway=={theirs}",
    )
    ahead = client.clock_ahead_s()
    yield Check(
        name="clock",
        level=Level.OK if abs(ahead) <= _CLOCK_LIMIT_S else Level.WARN,
        found=f"The service's clock and ours agree to {abs(ahead):.0f} s.",
        why="Times in logs and events cannot be compared.",
        hint="Let both hosts follow a time server: timedatectl set-ntp true",
    )
    diagnosis = client.diagnosis()
    yield Check(name="token", level=Level.OK, found="The service accepts it.")
    if diagnosis.agent_redis:
        yield redis_check(diagnosis.agent_redis)
    yield from diagnosis.checks
