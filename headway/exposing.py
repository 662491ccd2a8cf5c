"""HTTP listener for `/metrics` of a program without another HTTP server.

Standard library and prometheus-client only.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Bind:
    """Address of a listener. With port 0, the system chooses a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Bind:
        """Parse `PORT` (on loopback only) or `ADDRESS:PORT`. An IPv6 address has brackets.

        Raises:
            ValueError: the text has neither form.
        """
        host, _, port = text.strip().rpartition(":")
        if not (port.isdecimal() and int(port) <= 65_535) or (":" in host) != host.startswith("["):
            raise ValueError(f"{text!r} is not an address to listen at; write it like 9464 or 0.0.0.0:9464")
        return cls(host.strip("[]") or LOOPBACK, int(port))


@dataclass(frozen=True, slots=True)
class Listener:
    """A running listener, with its port and a function that closes it."""

    port: int
    close: Callable[[], None]


def listen(bind: Bind, registry: CollectorRegistry) -> Listener:
    """Answer GET requests with the metrics of the registry, in threads, until closed.

    Raises:
        HeadwayError: the address cannot be used.
    """
    from prometheus_client import start_http_server  # noqa: PLC0415  # only if requested

    try:
        server, thread = start_http_server(bind.port, bind.host, registry)
    except (OSError, socket.gaierror) as error:
        raise HeadwayError(
            f"Cannot listen for metrics at {bind.host}:{bind.port}: {error}.",
            "Choose another address or port, or unset it.",
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Listener(server.server_port, close)
