"""The agent's end of the socket to its launcher: find it, start it, replace it, talk to it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import structlog

from headway.errors import HeadwayError
from worker_agent.folders import StateFolder
from worker_agent.launcher.preload import HUGE_PAGES, SINGLE_THREADED, code_version
from worker_agent.launcher.protocol import (
    Decoder,
    Hello,
    Message,
    Shutdown,
    Start,
    Welcome,
    encode,
    socket_address,
)
from worker_agent.secrets import in_memory

_log = structlog.get_logger()

_MAX_STARTS = 5
_RETRY_S = 0.2
_LOG_BYTES = 1 << 20


class LauncherLink:
    """A connection that comes and goes. Not thread-safe: the supervisor's thread owns it.

    Args:
        state: the agent's folder.
        env: environment of a launcher that has to be started.
    """

    def __init__(self, state: StateFolder, env: Mapping[str, str]) -> None:
        self._state = state
        self._env = {**HUGE_PAGES, **env, **SINGLE_THREADED}
        self._socket: socket.socket | None = None
        self._decoder = Decoder()
        self._welcome: Welcome | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._outdated = False

    @property
    def connection(self) -> socket.socket | None:
        """The connection, for a selector; None when there is none."""
        return self._socket

    @property
    def ready(self) -> bool:
        """Whether orders are taken."""
        return self._welcome is not None

    @property
    def hosts_stores(self) -> bool:
        """Whether the launcher can keep a job's store."""
        return self._welcome is not None and self._welcome.hosts_stores

    @property
    def outdated(self) -> bool:
        """Whether the launcher runs other code than a new one would.

        This agent's own code is no measure: when that is the older one, no new launcher would match it.
        """
        return self.ready and self._outdated

    def connect(self) -> socket.socket | None:
        """Connect to the launcher, starting one where none is.

        It takes a new launcher a moment to listen: None means to call again.

        Raises:
            HeadwayError: it ends at once, again and again.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            with socket_address(self._state.path) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            self._ensure_process()
            return None
        self._socket = connection
        self._decoder = Decoder()
        self.send(Hello())
        return connection

    def send(self, message: Message) -> None:
        """Send an order; when the connection is gone, reading will say so."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(message))

    def start(self, run: str, secrets: Mapping[str, str]) -> None:
        """Order to start a run, with the secrets of its ranks in memory that has no name. They are in no file and no message.

        Raises:
            OSError: the launcher is of an earlier version, and would start the ranks without.
        """
        if not secrets:
            self.send(Start(run))
            return
        if self._welcome is not None and not self._welcome.takes_secrets:
            raise OSError(
                "the launcher of an earlier agent cannot hand secrets to ranks; it leaves with its last run"
            )
        memory = in_memory(secrets)
        try:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._socket, [encode(Start(run, secrets=True))], [memory])
        finally:
            os.close(memory)

    def receive(self) -> list[Message] | None:
        """What the launcher said; None when the connection is lost."""
        try:
            data = self._socket.recv(65536) if self._socket is not None else b""
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        messages = self._decoder.feed(data)
        for message in messages:
            if isinstance(message, Welcome):
                self._welcome = message
                self._outdated = message.version != code_version()
                self._starts = 0
        return messages

    def close(self) -> None:
        """Drop the connection; the launcher goes on."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._welcome = None

    def shut_down(self) -> None:
        """Ask the launcher to end, which it does when it keeps nothing."""
        self.send(Shutdown())

    def _ensure_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            time.sleep(_RETRY_S / 10)  # it will listen in a moment
            return
        if self._starts >= _MAX_STARTS:
            lines = self._state.launcher_log.read_text(errors="replace").splitlines()[-5:]
            raise HeadwayError("The launcher does not start:\n" + "\n".join(lines))
        if self._starts:
            time.sleep(_RETRY_S)
        self._starts += 1
        with _open_log(self._state.launcher_log) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker_agent.launcher", str(self._state.path)],
                cwd=Path(__file__).parent.parent,  # where this package was imported from
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _open_log(path: Path) -> BinaryIO:
    """Open the launcher's log for appending; start it anew when it has grown."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.unlink()
    return path.open("ab")
