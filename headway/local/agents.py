"""Agents that this machine starts as child processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.local.supervisor import Program


def agent_program(
    name: str,
    url: str,
    *,
    state: Path,
    log: Path,
    env: Mapping[str, str],
    arguments: Sequence[str] = (),
    own_jobs: bool = True,
    grace_s: float = 15.0,
    inside: Sequence[str] = (),
) -> Program:
    """Return the program of an agent.

    Args:
        name: name of its node.
        url: URL of the service.
        state: its state folder.
        log: file to which its output is appended.
        env: complete environment, with the join token.
        arguments: further arguments, such as its address and its slots.
        own_jobs: stop its ranks, with a checkpoint, when it ends.
        grace_s: seconds between SIGTERM and SIGKILL.
        inside: command that starts the agent's own as its last arguments.
    """
    # -P: import nothing from the working folder.
    argv = [*inside, sys.executable, "-P", "-u", "-m", "worker_agent", "--url", url, "--name", name]
    argv += ["--state-dir", str(state), *(["--own-jobs"] if own_jobs else []), *arguments]
    return Program(argv, env, log, grace_s=grace_s)
