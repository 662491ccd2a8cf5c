"""Ports of this machine, on its loopback address unless another one is given."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


ANY_PORT = 0
"""Port of which the kernel makes one that is free."""


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on this port of an address of this machine now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port on which no server listens, and which the kernel gives to no other process for a minute.

    A connection on the port that its server has closed keeps it (TIME_WAIT). Servers that set SO_REUSEADDR, as is usual,
    can still listen on it.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, 0))
        server.listen(1)
        port: int = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            server.accept()[0].close()  # the side that closes first keeps the port
            client.recv(1)
    return port
