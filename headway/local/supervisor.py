"""Programs that are kept running: started, looked after, started again, stopped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.local.processes import LocalError, end, limit_log, open_log, read_pid_file, write_pid_file

_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_STEADY_S = 60.0
"""Who lives this long has recovered: the next backoff is the first again."""
_LOOK_EVERY_S = 0.2
_KILL_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Child(Protocol):
    """Something that runs beside us: a program, a database server."""

    log: Path

    def start(self) -> object:
        """Start it. Nothing happens when it runs."""

    def alive(self) -> bool:
        """Whether what was started runs."""

    def stop(self) -> None:
        """End it and wait until it is gone. Nothing happens when it does not run."""


class Program:
    """A program of ours as a child process that writes to `log`, beside which lies its pid file.

    Args:
        argv: the command.
        env: its whole environment.
        log: the file that its output is appended to.
        grace_s: how long it may take to end after SIGTERM, before SIGKILL.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, grace_s: float = 15.0
    ) -> None:
        self.log = log
        self._argv = list(argv)
        self._env = dict(env)
        self._pid_file = log.with_suffix(".pid")
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own: Ctrl-C in a terminal reaches us alone, and we stop it in order.

        It runs in the folder of its log, so that no module of the user's folder is taken for ours.
        """
        if self.alive():
            return
        log = open_log(self.log)
        try:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        write_pid_file(self._pid_file, self._process.pid)

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM, the grace, SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            end(process.pid, (signal.SIGTERM, signal.SIGKILL), self._grace_s)
        process.wait()
        self._pid_file.unlink(missing_ok=True)

    @property
    def pid(self) -> int | None:
        """Process id of what was started last."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs. A signal is a negative number."""
        return self._process.poll() if self._process is not None else None


def end_left_over(logs: Path) -> None:
    """Kill the programs that a killed run left behind, by the pid files beside their logs.

    An agent that is killed leaves its ranks running, and its successor takes them up.

    Raises:
        LocalError: one does not die.
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
    """Starts its children again when they end, with a pause that grows up to half a minute."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, child: Child, layer: int) -> None:
        """Look after a child that has been started. Higher layers rest on lower ones and stop first."""
        self._watched[name] = _Watched(child, layer, started_at_s=time.monotonic())

    def start(self) -> None:
        """Look after the children from now on, in a thread."""
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking after the children, then stop them: layer by layer, those of one at the same time."""
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
        """Note who has ended; start who is due; keep logs from growing for ever."""
        for name, watched in self._watched.items():
            limit_log(watched.child.log)
            if watched.restart_at_s is not None:
                if now_s >= watched.restart_at_s:
                    self._restart(name, watched, now_s)
            elif not watched.child.alive():
                if now_s - watched.started_at_s > _STEADY_S:
                    watched.backoff_s = _FIRST_BACKOFF_S
                self._plan(watched, now_s)
                _log.warning(
                    "%s ended; starting it again in %.1f s. Its log: %s",
                    name,
                    watched.backoff_s,
                    watched.child.log,
                )

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
