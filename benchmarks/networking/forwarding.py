"""Servers of 127.0.0.1 on another address of this machine."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress

from headway.local.ports import HOST

_PIECE_BYTES = 1 << 16


class Forwarder(socketserver.ThreadingTCPServer):
    """Port of an address behind which a server of 127.0.0.1 answers."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: str, to: int) -> None:
        super().__init__((address, 0), ForwardedConnection)
        self.to = to
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


class ForwardedConnection(socketserver.BaseRequestHandler):
    """A connection that is copied in both directions until both ends are closed."""

    server: Forwarder

    def handle(self) -> None:
        """Copy until the end. A server that does not answer closes the connection."""
        with suppress(ConnectionRefusedError), socket.create_connection((HOST, self.server.to)) as inside:
            back = threading.Thread(target=_copy, args=(inside, self.request), daemon=True)
            back.start()
            _copy(self.request, inside)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_PIECE_BYTES):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
