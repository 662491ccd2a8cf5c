"""The agent's connection to its launcher, with the start and replacement of the launcher."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import structlog

from headway.errors import HeadwayError
from worker_agent.host.folders import StateFolder
from worker_agent.launcher.preload import HUGE_PAGES, SINGLE_THREADED, code_version
from worker_agent.launcher.protocol import (
    Decoder,
    Execute,
    Hello,
    Message,
    Shutdown,
    Start,
    Welcome,
    encode,
    socket_address,
)
from worker_agent.link.secrets import in_memory

_log = structlog.get_logger()

_MAX_STARTS = 5
_RETRY_S = 0.2
_LOG_BYTES = 1 << 20


class LauncherLink:
    """Connection to the launcher, which can be lost and restored. Not thread-safe: the supervisor's thread owns it.

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
        """Connection for a selector, or None if there is none."""
        return self._socket

    @property
    def ready(self) -> bool:
        """True if the launcher accepts orders."""
        return self._welcome is not None

    @property
    def hosts_stores(self) -> bool:
        """True if the launcher can keep a job's store."""
        return self._welcome is not None and self._welcome.hosts_stores

    @property
    def outdated(self) -> bool:
        """True if the launcher runs other code than a newly started one would.

        The comparison does not use the code of this agent: if that is outdated itself, no new launcher would
        match it.
        """
        return self.ready and self._outdated

    def connect(self) -> socket.socket | None:
        """Connect to the launcher, and start one if there is none.

        A new launcher needs a moment until it listens: None means that the caller should call again.

        Raises:
            HeadwayError: the launcher exits at once, several times in a row.
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
        """Send an order. If the connection is lost, the next `receive` detects it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(message))

    def start(self, run: str, secrets: Mapping[str, str]) -> None:
        """Order the start of a run, and pass the secrets of its ranks in an anonymous memory file.

        The secrets are in no named file and in no message.

        Raises:
            OSError: there is no memory for the file.
        """
        if not secrets:
            self.send(Start(run))
            return
        memory = in_memory(secrets)
        try:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._socket, [encode(Start(run, secrets=True))], [memory])
        finally:
            os.close(memory)

    def execute(self, order: Execute, streams: Sequence[int], secrets: Mapping[str, str]) -> None:
        """Order a command, and pass its descriptors and secrets. Copies of the `streams` stay with the caller.

        If the connection is lost, so are the launcher's ends, and the caller's status pipe ends.

        Raises:
            OSError: there is no memory for the secrets.
        """
        memory = [in_memory(secrets)] if secrets else []
        try:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._socket, [encode(order)], [*streams, *memory])
        finally:
            for descriptor in memory:
                os.close(descriptor)

    def receive(self) -> list[Message] | None:
        """Return the messages of the launcher, or None if the connection is lost."""
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
        """Close the connection; the launcher continues."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._welcome = None

    def shut_down(self) -> None:
        """Ask the launcher to exit, which it does if it has no runs."""
        self.send(Shutdown())

    def _ensure_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            time.sleep(_RETRY_S / 10)  # it will listen in a moment
            return
        if self._starts >= _MAX_STARTS:
            lines = self._state.launcher_log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
            raise HeadwayError("The launcher does not start:\n" + "\n".join(lines))
        if self._starts:
            time.sleep(_RETRY_S)
        self._starts += 1
        with _open_log(self._state.launcher_log) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker_agent.launcher", str(self._state.path)],
                cwd=Path(__file__).parents[2],  # folder from which this package was imported
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _open_log(path: Path) -> BinaryIO:
    """Open the launcher's log for appending, after removing it if it is too large."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.unlink()
    return path.open("ab")
