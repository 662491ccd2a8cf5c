"""Child processes on this machine: their identity, their state and their end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from headway.errors import HeadwayError
from headway.private_files import write_private

_POLL_S = 0.01
_LAST_LINES = 8
_LOG_LIMIT_BYTES = 16 * 2**20


class LocalError(HeadwayError):
    """An error because a program on this machine cannot be started, found or used."""


class Startable(ABC):
    """A server or stack that runs from `start` to `stop`, or inside a `with` block."""

    @abstractmethod
    def start(self) -> object:
        """Start it unless it is running."""

    @abstractmethod
    def stop(self) -> None:
        """End it and wait until it is gone. Do nothing if it is not running."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerProcess(Startable):
    """A `Startable` that is one process."""

    _process: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Return whether the process that this object started is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the last start, or None."""
        return self._process.pid if self._process is not None else None


def birth(pid: int) -> str | None:
    """Return a text that identifies the process `pid` for all time, or None if it is not running.

    Process ids are reused, after a reboot even in the same order. The start time distinguishes processes.
    """
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the command in parentheses may contain spaces
        gone = fields[0] == "Z" and int(fields[17]) <= 1  # with more threads, some are still ending
        return None if gone else f"{boot}/{fields[19]}"
    return shown_by_ps(pid, "lstart=") or None


def shown_by_ps(pid: int, column: str) -> str:
    """Return what `ps` shows of a process in a column, for hosts without /proc; empty if it is gone."""
    shown = subprocess.run(
        ["ps", "-o", column, "-p", str(pid)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return shown.stdout.strip()


def write_pid_file(path: Path, pid: int) -> None:
    """Store a process id, so that a later run can find the process if this one is killed."""
    write_private(path, json.dumps({"pid": pid, "birth": birth(pid)}))


def read_pid_file(path: Path) -> int | None:
    """Return the process id stored in `path` if the process is running, otherwise None."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        pid, born = int(saved["pid"]), saved["birth"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no file, or a truncated one after a crash
    return pid if born is not None and birth(pid) == born else None


def end(pid: int, signals: tuple[signal.Signals, ...], patience_s: float) -> bool:
    """Send each signal in turn, and wait up to `patience_s` after each for the process to end.

    Returns:
        True if the process is gone. The call is safe for a process that has ended already.
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
    """Rename a log over 16 MiB to `path.1` by copying it, while a process is still writing.

    The writer appends, so it continues at the start of the emptied file. Lines written within the few
    milliseconds of the copy may be lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size > _LOG_LIMIT_BYTES:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def open_log(path: Path) -> int:
    """Return a descriptor that appends to `path`. A log over 16 MiB is first renamed to `path.1`."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def spawn(argv: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program whose output is appended to `log`. `options` are those of `Popen`."""
    descriptor = open_log(log)
    try:
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(argv, stdout=descriptor, stderr=descriptor, **options)
    finally:
        os.close(descriptor)


def last_lines(path: Path, start: int = 0) -> str:
    """Return the last lines of a log for an error message, but nothing before byte `start`."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, path.stat().st_size - 8192))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_LAST_LINES:])
