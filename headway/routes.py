"""Routes of this host. Standard library only."""

from __future__ import annotations

import socket


def own_address(host: str, port: int) -> str | None:
    """Return the address of this host on its route to another one, or None if there is no route."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
