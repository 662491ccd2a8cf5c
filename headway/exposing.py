"""A listener for `/metrics` of a program that serves nothing else by HTTP. Standard library and prometheus-client only."""

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
    """Where to listen. Port 0: one that the system chooses."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Bind:
        """From `PORT` (on loopback alone) or `ADDRESS:PORT`; an IPv6 address stands in brackets.

        Raises:
            ValueError: it is neither.
        """
        host, _, port = text.strip().rpartition(":")
        if not (port.isdecimal() and int(port) <= 65_535) or (":" in host) != host.startswith("["):
            raise ValueError(f"{text!r} is no place to listen; write it like 9464 or 0.0.0.0:9464")
        return cls(host.strip("[]") or LOOPBACK, int(port))


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener that runs."""

    port: int
    close: Callable[[], None]


def listen(bind: Bind, registry: CollectorRegistry) -> Listener:
    """Answer GET with the metrics of the registry, in threads, until closed.

    Raises:
        HeadwayError: the address cannot be listened at.
    """
    from prometheus_client import start_http_server  # noqa: PLC0415  # only where it is asked for

    try:
        server, thread = start_http_server(bind.port, bind.host, registry)
    except (OSError, socket.gaierror) as error:
        raise HeadwayError(
            f"Cannot listen for metrics at {bind.host}:{bind.port}: {error}.",
            "Choose another address or port, or none.",
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Listener(server.server_port, close)
