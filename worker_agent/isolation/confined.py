"""Run a short program in the confinement of jobs, to test what the confinement allows."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Final

from worker_agent.launcher.confinement import Confinement, enter

_LIMIT_S: Final = 60.0
_MOST_BYTES: Final = 1 << 20
_LAST_CHARACTERS: Final = 300


def run_confined(
    confinement: Confinement, argv: Sequence[str], limit_s: float = _LIMIT_S
) -> tuple[int | None, str]:
    """Run a program under the confinement, and return its exit code and output.

    If the program fails, the output is its last line only. If it exceeds the time limit, the code is None.
    The function forks, so call it before any thread starts.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become(confinement, argv, writer)
    os.close(writer)
    output, in_time = _read(reader, time.monotonic() + limit_s)
    os.close(reader)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not in_time:
        return None, f"it did not finish within {limit_s:.0f} s"
    text = output.decode(errors="replace").strip()
    if code == 0:
        return code, text
    return code, (text.splitlines() or [f"it exited with code {code} and no output"])[-1][:_LAST_CHARACTERS]


def _become(confinement: Confinement, argv: Sequence[str], writer: int) -> None:
    """Confine this child process and execute the program; never returns."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.chdir("/")
        enter(confinement)
        os.execv(argv[0], list(argv))  # noqa: S606  # no shell
    except BaseException as error:  # noqa: BLE001  # reported to the parent; the child must not run the parent's code
        os.write(2, f"{error}".encode())
    finally:
        os._exit(1)


def _read(reader: int, until_s: float) -> tuple[bytes, bool]:
    """Return the output up to its end, and True if the end came within the time and size limits."""
    output = b""
    while len(output) < _MOST_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return output, False
        piece = os.read(reader, 1 << 16)
        if not piece:
            return output, True
        output += piece
    return output, False
