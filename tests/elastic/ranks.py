"""The program of a forked rank. The fork server imports it, so that a rank starts with torch loaded."""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import forkserver
from typing import Any

import torch

from headway.train.collectives import registry
from headway.train.host.output import exit_actions
from tests.elastic import streamed

ENV_COLLECTIVE = "TEST_COLLECTIVE"
"""Collective backend of ranks whose script names none."""

PRELOAD = [
    "__main__",
    "torch",
    "torch._dynamo",  # what the first DDP() imports, for two seconds
    "torch.distributed._functional_collectives",
    "headway.train",
    "headway.train.checkpoint.sharded",  # as `torch.distributed.checkpoint` is by the launcher
    "tests.elastic.ranks",
    "tests.elastic.savers",
]


def leave_fork_server() -> None:
    """Close this process's end of the pipe that keeps the fork server alive.

    The server ends once every process has closed its end. With those of ranks and of their children open, whoever stops it would
    wait for a rank that was left.
    """
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def be_a_rank(script: str, arguments: Sequence[str], env: Mapping[str, str], log: str) -> None:
    """Run `script` as `__main__` with this environment and its output in `log`."""
    leave_fork_server()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # where it hangs, if it does
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    # as if they were installed
    registry._BUILT_IN[streamed.NAME] = streamed.Streamed
    registry._BUILT_IN[streamed.SILENT] = partial(streamed.Streamed, silent=True)
    registry._BUILT_IN["gloo"] = registry._BUILT_IN[env.get(ENV_COLLECTIVE, "gloo")]
    sys.argv = [script, *arguments]
    # as the interpreter does it
    sys.path[:0] = [os.path.dirname(script), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]  # noqa: PTH120
    runpy.run_path(script, run_name="__main__")
    exit_actions.close()  # `multiprocessing` ends its children without `atexit`
