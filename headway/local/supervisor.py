"""Supervision of child programs: start, watch, restart and stop them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.local.processes import (
    LocalError,
    ServerProcess,
    end,
    limit_log,
    read_pid_file,
    spawn,
    write_pid_file,
)

_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_STEADY_S = 60.0
"""Lifetime after which a restarted child counts as recovered. Its next backoff is the first one again."""
_LOOK_EVERY_S = 0.2
_KILL_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Child(Protocol):
    """Interface of a supervised child: a program or a database server."""

    log: Path

    def start(self) -> object:
        """Start the child unless it is running."""

    def alive(self) -> bool:
        """Return whether the child is running."""

    def stop(self) -> None:
        """End the child and wait until it is gone. Do nothing if it is not running."""


class Program(ServerProcess):
    """A program of ours as a child process. It writes to `log`, and its pid file lies beside the log.

    Args:
        argv: command with its arguments.
        env: complete environment.
        log: file to which its output is appended.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, grace_s: float = 15.0
    ) -> None:
        self.log = log
        self._argv = list(argv)
        self._env = dict(env)
        self._pid_file = log.with_suffix(".pid")
        self._grace_s = grace_s

    def start(self) -> None:
        """Start the program in a session of its own, so that Ctrl-C does not reach it.

        It runs in the folder of its log, so that no module of the user's folder shadows one of ours.
        """
        if self.alive():
            return
        self._process = spawn(
            self._argv, self.log, env=self._env, cwd=self.log.parent, start_new_session=True
        )
        write_pid_file(self._pid_file, self._process.pid)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            end(process.pid, (signal.SIGTERM, signal.SIGKILL), self._grace_s)
        process.wait()
        self._pid_file.unlink(missing_ok=True)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, or None while it is running. A negative number is a signal."""
        return self._process.poll() if self._process is not None else None


def end_left_over(logs: Path) -> None:
    """Kill the programs of a killed run, found by the pid files beside their logs.

    A killed agent leaves its ranks running, and its successor takes them over.

    Raises:
        LocalError: a program does not end.
    """
    for pid_file in sorted(logs.glob("*.pid")):
        pid = read_pid_file(pid_file)
        if pid is not None and not end(pid, (signal.SIGKILL,), _KILL_TIMEOUT_S):
            raise LocalError(f"An old process {pid} ({pid_file.stem}) does not end.", f"Try: kill -9 {pid}")
        pid_file.unlink(missing_ok=True)


@dataclass
class _Watched:
    child: Child
    layer: int
    backoff_s: float = _FIRST_BACKOFF_S
    started_at_s: float = 0.0
    restart_at_s: float | None = None


class Supervisor:
    """Supervisor that restarts ended children with exponential backoff of up to half a minute."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, child: Child, layer: int) -> None:
        """Watch a child that has been started. Higher layers depend on lower ones and stop first."""
        self._watched[name] = _Watched(child, layer, started_at_s=time.monotonic())

    def start(self) -> None:
        """Start the thread that watches the children."""
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, then stop the children layer by layer; those of one layer stop in parallel."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for layer in sorted({watched.layer for watched in self._watched.values()}, reverse=True):
            children = {name: each.child for name, each in self._watched.items() if each.layer == layer}
            _log.info("stopping %s", ", ".join(children))
            with ThreadPoolExecutor(len(children)) as threads:
                list(threads.map(lambda child: child.stop(), children.values()))
        self._watched.clear()

    def run_once(self, now_s: float) -> None:
        """Plan restarts of ended children, perform restarts that are due, and limit the size of logs."""
        for name, watched in self._watched.items():
            limit_log(watched.child.log)
            if watched.restart_at_s is not None:
                if now_s >= watched.restart_at_s:
                    self._restart(name, watched, now_s)
            elif not watched.child.alive():
                if now_s - watched.started_at_s > _STEADY_S:
                    watched.backoff_s = _FIRST_BACKOFF_S
                self._plan(watched, now_s)
                message = "%s ended; restarting it in %.1f s. Its log: %s"
                _log.warning(message, name, watched.backoff_s, watched.child.log)

    def _restart(self, name: str, watched: _Watched, now_s: float) -> None:
        watched.backoff_s = min(2 * watched.backoff_s, _LONGEST_BACKOFF_S)
        try:
            watched.child.start()
        except (LocalError, OSError) as error:
            self._plan(watched, now_s)
            _log.warning("%s does not start, next try in %.1f s: %s", name, watched.backoff_s, error)
            return
        watched.restart_at_s = None
        watched.started_at_s = now_s
        _log.warning("%s runs again", name)

    def _plan(self, watched: _Watched, now_s: float) -> None:
        watched.restart_at_s = now_s + watched.backoff_s

    def _loop(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self.run_once(time.monotonic())
