"""Facts that only the process table can tell."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 120.0


def launchers(state: Path) -> list[int]:
    """Launchers of this state folder. Forked ranks keep the command line, so the leader counts alone."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if b"worker_agent.launcher" in arguments and str(state.resolve()).encode() in arguments:
                found.append((int(stat[1]), int(entry.name)))
    pids = {pid for _, pid in found}
    return [pid for parent, pid in found if parent not in pids]


def end_all(state: Path) -> None:
    """Kill the launchers of this state folder, whose ranks die with them, and what these have started, which does not."""
    for pid in launchers(state):
        _kill(pid)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cwd").readlink().is_relative_to(state.resolve()):
                _kill(int(entry.name))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait for something that only looking can tell, such as the end of a process that is not ours."""
    deadline = time.monotonic() + timeout_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        tick.wait(0.01)
