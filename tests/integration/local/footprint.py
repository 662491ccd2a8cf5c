"""Processes that a stack leaves on a machine: those that refer to its data folder."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 120.0


def until(condition: Callable[[], object], what: str, within_s: float = WAIT_S) -> None:
    """Wait for a condition that nothing announces; fail when it does not come."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s for {what}"
        pause.wait(0.05)


def processes_of(folder: Path) -> dict[int, str]:
    """Processes that work in a folder, or name it in their command line or environment, ours excepted."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            about = command + (entry / "environ").read_bytes() + os.fsencode((entry / "cwd").readlink())
            if (
                os.fsencode(folder) in about
                and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found[int(entry.name)] = command.decode(errors="replace")
    return found


def kill_all(folder: Path) -> None:
    """SIGKILL to everything at once, as a power failure would."""
    while victims := processes_of(folder):
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
