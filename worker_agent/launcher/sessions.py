"""Commands that people run beside a living rank, in its place: `LaunchPlan` of the run, streams of the caller.

A command never outlives its rank. It adopts its orphaned descendants, so that all of them are found when it is killed, in
whatever session they are. Those that outlive the end of the command itself are found by a variable of their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.runtime import ENV_COMMAND
from worker_agent.launcher import processes

MAX_SESSIONS = 8
"""Most commands at one time on a node. Each holds a file descriptor of the launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Open descriptors of one command. The launcher takes them over and closes each of them."""

    stdin: int
    stdout: int
    stderr: int
    status: int
    """Pipe that gets one line of JSON when the command ends; its end without a line means that the launcher died."""

    def refuse(self, why: str) -> None:
        """Tell the caller that the command does not start, and close the status pipe."""
        _tell(self.status, {"refused": why})

    def close_standard(self) -> None:
        """Close the command's own three streams, which only its process needs."""
        for descriptor in {self.stdin, self.stdout, self.stderr}:
            os.close(descriptor)

    def become_standard(self) -> None:
        """Make the three streams those of this process, a forked child."""
        # Copies above 2 first: a stream may itself have a number below 3.
        copies = [os.dup(one) for one in (self.stdin, self.stdout, self.stderr)]
        self.close_standard()
        for number, copy in enumerate(copies):
            os.dup2(copy, number)
            if copy > 2:  # stderr
                os.close(copy)


@dataclass(frozen=True, slots=True)
class Session:
    """Running command: its pid, which is also its process group, and the pipe for its end."""

    pid: int
    rank: int
    argv: Sequence[str]
    status: int
    command: str = ""
    """Id that the agent gave the command."""
    owner: object = None
    """Connection to the agent that gave the order."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Environment variable that the command's descendants inherit; none without an id."""
        return (f"{ENV_COMMAND}={self.command}",) if self.command else ()

    def kill(self) -> None:
        """Send SIGKILL to the command, its process group and its descendants. Call it only before the command is reaped."""
        processes.kill_tree(self.pid)
        os.kill(self.pid, signal.SIGKILL)  # it may not lead its own group yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def ended(self, code: int) -> None:
        """Tell the caller the end of the command; `code` is negative for a signal, as in `subprocess`."""
        _tell(self.status, {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None})


def _tell(status: int, record: dict[str, object]) -> None:
    """Write the record to the pipe and close it."""
    with contextlib.suppress(BrokenPipeError):  # the agent has died, and its successor asks for no command
        os.write(status, json.dumps(record).encode() + b"\n")
    os.close(status)
