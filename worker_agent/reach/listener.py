"""Answers to probes of other agents: a few bytes for a token that the service made, each token once.

The listener is bounded in connections at once, in connections per second, in bytes and in seconds of each connection.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import suppress

import structlog

from worker_agent.reach.protocol import MAX_LINE_BYTES, OK, REFUSED, ProbeRequest, parse

_log = structlog.get_logger()

CONNECTIONS = 8
"""Maximum number of connections at once; further ones wait in the queue of the kernel."""
PER_S = 20.0
"""Connections per second beyond which the listener accepts later. A round of the service asks for fewer."""
BURST = 40.0
_CONNECTION_S = 5.0
_VALID_MS = 120_000
"""Age of a token, by the clock of the service alone, beyond which it is refused."""
_ACCEPT_S = 0.5
_CHUNK = bytes(1 << 16)


class Tokens:
    """Tokens that were used. Only the service's clock counts, which tokens carry, so that clocks may differ."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._newest = 0
        self._used: set[tuple[str, int]] = set()

    def accept(self, request: ProbeRequest) -> bool:
        """Return True for a token of this key that is new and recent, and note its use."""
        use = (request.source, request.nonce)
        if not request.has_token_of(self._key) or use in self._used:
            return False
        if request.nonce < self._newest - _VALID_MS:
            return False
        self._newest = max(self._newest, request.nonce)
        self._used = {one for one in self._used if one[1] >= self._newest - _VALID_MS} | {use}
        return True


class ProbeListener:
    """Body of the listening thread.

    Args:
        address: the address that the node advertises. The listener binds to it where it is an address of this host,
            else to all addresses, because a forwarded port arrives at another one.
        port: the port, from the node's range; None for a listener that answers nobody.
        key: the key of the tokens.
        stopping: set when the agent stops.
    """

    def __init__(self, address: str, port: int | None, key: str, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._tokens = Tokens(key)
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._socket = None if port is None else _bound(address, port)

    @property
    def listens(self) -> bool:
        """True if the port could be bound."""
        return self._socket is not None

    def run(self) -> None:
        """Answer probes until the agent stops."""
        if self._socket is None:
            return
        left, at_s = BURST, time.monotonic()
        with self._socket as server:
            server.settimeout(_ACCEPT_S)
            while not self._stopping.is_set():
                now_s = time.monotonic()
                left, at_s = min(BURST, left + (now_s - at_s) * PER_S), now_s
                if left < 1:
                    self._stopping.wait((1 - left) / PER_S)
                    continue
                if not self._slots.acquire(timeout=_ACCEPT_S):
                    continue
                try:
                    connection, _ = server.accept()
                except OSError:
                    self._slots.release()
                    continue
                left -= 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                self._talk(connection, time.monotonic() + _CONNECTION_S)
        finally:
            self._slots.release()

    def _talk(self, connection: socket.socket, until_s: float) -> None:
        """Read the request, check its token and send the bytes that it names."""
        line = b""
        while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            connection.settimeout(max(0.01, until_s - time.monotonic()))
            received = connection.recv(MAX_LINE_BYTES - len(line))
            if not received:
                return
            line += received
        request = parse(line)
        with self._lock:
            accepted = request is not None and self._tokens.accept(request)
        if request is None or not accepted:
            connection.sendall(REFUSED)
            return
        connection.sendall(OK)
        left = request.size_bytes
        while left > 0 and (rest_s := until_s - time.monotonic()) > 0:
            connection.settimeout(rest_s)
            left -= connection.send(_CHUNK[: min(left, len(_CHUNK))])
        connection.shutdown(socket.SHUT_WR)


def _bound(address: str, port: int) -> socket.socket | None:
    """Return a listening socket, or None, with a line in the log, if the port is in use."""
    try:
        family, *_, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        family, target = socket.AF_INET, ("0.0.0.0", port)  # noqa: S104  # a name that only other hosts know
    try:
        return _listening(family, target)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            _log.warning("other hosts cannot probe this one", port=port, error=str(error))
            return None
    try:
        return _listening(family, ("", port))
    except OSError as error:
        _log.warning("other hosts cannot probe this one", port=port, error=str(error))
        return None


def _listening(family: int, target: tuple[object, ...]) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(target)
        server.listen()
    except OSError:
        server.close()
        raise
    return server
