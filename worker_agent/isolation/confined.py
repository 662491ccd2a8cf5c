"""Run a short program in the confinement of jobs, to test what the confinement allows."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from worker_agent.launcher.confinement import Confinement, enter

_LIMIT_S: Final = 60.0
_MOST_BYTES: Final = 1 << 20
_LAST_CHARACTERS: Final = 300


@contextmanager
def standing_confined(confinement: Confinement, argv: Sequence[str], folder: str = "/") -> Iterator[int]:
    """Yield the id of a process with the program under the confinement, once it has printed a byte; kill it at the end.

    The function forks, so call it before any thread starts.

    Raises:
        OSError: the program ended, or printed nothing within a minute.
    """
    child, reader = _start(confinement, argv, folder)
    try:
        ready, _, _ = select.select([reader], [], [], _LIMIT_S)
        if not ready or not os.read(reader, 1):
            raise ChildProcessError(f"{argv[0]} does not start")
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)


def run_confined(
    confinement: Confinement, argv: Sequence[str], limit_s: float = _LIMIT_S, folder: str = "/"
) -> tuple[int | None, str]:
    """Run a program under the confinement in a working folder, and return its exit code and output.

    If the program fails, the output is its last line only. If it exceeds the time limit, the code is None.
    The function forks, so call it before any thread starts.
    """
    child, reader = _start(confinement, argv, folder)
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


def _start(confinement: Confinement, argv: Sequence[str], folder: str) -> tuple[int, int]:
    """Fork a child that becomes the program, and return its id and the end of the pipe with its output."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become(confinement, argv, writer, folder)
    os.close(writer)
    return child, reader


def _become(confinement: Confinement, argv: Sequence[str], writer: int, folder: str) -> None:
    """Confine this child process and execute the program; never returns."""
    try:
        os.setsid()  # as a rank: a signal to its own group must not reach the agent's
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        enter(confinement)
        os.chdir(folder)
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
