"""Slurm's own commands, and the meaning of their errors: unknown outcome, no capacity now, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile

from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable

_TIMEOUT_S = 60.0
_KILLED_S = 5.0
"""Wait for the end of a killed command. One that hangs in a file system of the network may not end at all."""
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_CLUSTERS", "LD_LIBRARY_PATH")
"""Variables that Slurm's commands get, and batch jobs from them. The service's own secrets are not among them."""
_UNANSWERED = (
    "unable to contact",
    "socket timed out",
    "zero bytes were transmitted",
    "connection refused",
    "connection reset",
    "temporarily unable to accept",
    "try again later",
    "communication connection failure",
    "protocol authentication error",
    "slurmdbd",
    "insane message length",
    "slurm backup controller in standby mode",
)
_NO_CAPACITY = (
    "qosmax",
    "qosgrp",
    "assocmax",
    "assocgrp",
    "job submit limit",
    "job violates accounting/qos policy",
    "partition is down",
    "partition(s) is down",
    "partition is drain",
    "required node not available",
    "nodes required for job are down, drained or reserved",
    "reservation",
)
NO_SUCH_JOB = ("invalid job id specified", "already completing or completed")


class SlurmFailed(Exception):
    """Answer of a command of Slurm that failed. `text` is what it printed as its error."""

    def __init__(self, command: str, text: str) -> None:
        super().__init__(f"{command}: {text}")
        self.text = text


async def run(command: Sequence[str], *, extra: Mapping[str, str] | None = None, script: str = "") -> str:
    """Run a command of Slurm and return what it printed. Times are in UTC.

    Args:
        command: the program and its arguments.
        extra: variables for the program, and for the batch job that it submits.
        script: standard input.

    Raises:
        SlurmFailed: the command ended with an error.
        Unavailable: it is not installed, or did not end in time; its effect is then unknown.
    """
    env = {name: os.environ[name] for name in _PASSED if name in os.environ} | {
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
    try:
        with TemporaryFile() as given:  # a pipe breaks if the command ends before it has read its input
            given.write(script.encode())
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env | dict(extra or {}),
            )
    except OSError as error:
        raise Unavailable(
            f"{command[0]} cannot be run ({error.strerror}); install Slurm's commands beside the service."
        ) from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise Unavailable(f"{command[0]} did not end within {_TIMEOUT_S:.0f} s.") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=_KILLED_S)
    if process.returncode:
        raise SlurmFailed(
            command[0], err.decode(errors="replace").strip() or f"exit code {process.returncode}"
        )
    return out.decode(errors="replace")


def meaning(failed: SlurmFailed, *, launching: bool = False) -> HeadwayServiceError:
    """Return the service's error for a failed command. Only a launch can be refused or lack capacity."""
    text = failed.text.lower()
    if any(one in text for one in _UNANSWERED) or not launching:
        return Unavailable(f"Slurm gave no answer to rely on: {failed}")
    if any(one in text for one in _NO_CAPACITY):
        return NoCapacity(f"Slurm has no node for it now: {failed.text}")
    return ProviderRefused(f"Slurm refuses the job: {failed.text}")
