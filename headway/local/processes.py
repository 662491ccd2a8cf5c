"""Child processes of this machine: who they are, whether they live, how they end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from headway.errors import HeadwayError

_POLL_S = 0.01
_LOG_LIMIT_BYTES = 16 * 2**20


class LocalError(HeadwayError):
    """Something on this machine cannot be started, found or used."""


def birth(pid: int) -> str | None:
    """A text that no other process of this machine has or had, or None when `pid` is not running.

    Process ids are used again, after a reboot even in the same order; the start time tells them apart.
    """
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the command before it may contain anything
        gone = fields[0] == "Z" and int(fields[17]) <= 1  # with more, threads of it still end
        return None if gone else f"{boot}/{fields[19]}"
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def write_pid_file(path: Path, pid: int) -> None:
    """Remember a process, so that a later run can find it when this one is killed."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": pid, "birth": birth(pid)}))
    temporary.replace(path)


def read_pid_file(path: Path) -> int | None:
    """The process remembered in `path` when it still runs, else None."""
    try:
        saved = json.loads(path.read_text())
        pid, born = int(saved["pid"]), saved["birth"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no file, or one cut short by a crash: nothing to find
    return pid if born is not None and birth(pid) == born else None


def end(pid: int, signals: tuple[signal.Signals, ...], patience_s: float) -> bool:
    """Send each signal in turn and wait up to `patience_s` after each for the process to go.

    Returns:
        Whether the process is gone. Safe to call for one that has gone already.
    """
    born = birth(pid)
    for number in signals:
        if born is None or birth(pid) != born:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if birth(pid) != born:
                return True
            time.sleep(_POLL_S)
    return birth(pid) != born


def limit_log(path: Path) -> None:
    """Keep a log over 16 MiB as `path.1`, and go on with an empty one, while somebody writes to it.

    Its writer appends, so it goes on at the beginning; what it writes within these few milliseconds may be lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size > _LOG_LIMIT_BYTES:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def open_log(path: Path) -> int:
    """A descriptor that appends to `path`; a log over 16 MiB becomes `path.1` first."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def last_lines(path: Path, count: int = 8, start: int = 0) -> str:
    """The end of a log, for an error message; nothing of what is before the byte `start`."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, path.stat().st_size - 8192))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])
