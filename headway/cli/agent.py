"""`headway agent`: this machine offers its slots to a service."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.context import of
from headway.errors import HeadwayError


def agent(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="HEADWAY_URL", help="the service, e.g. http://10.0.0.1:8123")],
    token: Annotated[str, typer.Option(envvar="HEADWAY_JOIN_TOKEN", help="the service's join token")],
    name: Annotated[str | None, typer.Option(help="name of this node; default: the host name")] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="CPU slots to offer; default: GPUs, else cores")
    ] = None,
    device_kind: Annotated[
        str | None, typer.Option(help="call the devices this, e.g. a100; default: detected")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="what a restarted agent goes on from")] = None,
    address: Annotated[str | None, typer.Option(help="where other nodes reach this one")] = None,
    ports: Annotated[
        str | None, typer.Option(metavar="FIRST-LAST", help="ports that jobs may use here")
    ] = None,
    own_jobs: Annotated[
        bool, typer.Option("--own-jobs", help="stop the jobs when the agent is stopped")
    ] = False,
) -> None:
    """Run an agent: this machine's slots train jobs of a service.

    It goes on until it is stopped. Stopping it does not stop its jobs, unless --own-jobs is given:
    an agent that is started again with the same state folder takes them up.
    """
    missing = [module for module in ("worker_agent", "redis") if importlib.util.find_spec(module) is None]
    if missing:
        raise HeadwayError("The agent is not installed here.", "Install it: pip install 'headway[agent]'.")
    given = {
        "--url": url,
        "--token": token,
        "--name": name,
        "--slots": slots,
        "--device-kind": device_kind,
        "--state-dir": state_dir,
        "--address": address,
        "--ports": ports,
    }
    argv = [sys.executable, "-m", "worker_agent"]
    argv += [part for flag, value in given.items() if value is not None for part in (flag, str(value))]
    of(context).become([*argv, *(["--own-jobs"] if own_jobs else [])])
