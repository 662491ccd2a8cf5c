"""The verb `headway agent`, which offers this machine's slots to a service."""

from __future__ import annotations

import importlib.util
import sys

import typer

from headway.cli.context import of
from headway.errors import HeadwayError


def agent(context: typer.Context) -> None:
    """Run an agent, which trains the jobs of a service on this machine's slots."""
    if any(importlib.util.find_spec(module) is None for module in ("worker_agent", "redis")):
        raise HeadwayError("The agent is not installed here.", "Install it: pip install 'headway[agent]'.")
    of(context).become([sys.executable, "-P", "-m", "worker_agent", *context.args])
