"""`headway agent`: this machine offers its slots to a service."""

from __future__ import annotations

import importlib.util
import sys

import typer

from headway.cli.context import of
from headway.errors import HeadwayError

AGENT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Flags, `--help` among them, are the agent's own: they are defined in one place, there."""


def agent(context: typer.Context) -> None:
    """Run an agent: this machine's slots train jobs of a service."""
    if any(importlib.util.find_spec(module) is None for module in ("worker_agent", "redis")):
        raise HeadwayError("The agent is not installed here.", "Install it: pip install 'headway[agent]'.")
    of(context).become([sys.executable, "-m", "worker_agent", *context.args])
