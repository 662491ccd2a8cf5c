"""A name server of a test, and threads that ask it."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headway import lookups

NAMELESS = "192.0.2.1"
"""An address for documentation, which no file of hosts names."""


@contextmanager
def asking(port: int) -> Iterator[None]:
    """Have this thread's resolver ask the name server at this port of the host, once and for a second."""
    state = lookups.resolver_state()
    assert state is not None
    before = state.retrans, state.retry
    state.retrans = state.retry = 1
    try:
        with lookups.asking(state, port):
            yield
    finally:
        state.retrans, state.retry = before


def look_up() -> None:
    """Look up the name of an address that has none."""
    try:
        socket.getnameinfo((NAMELESS, 1), 0)
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN:
            raise


def is_asked(server: socket.socket) -> bool:
    """Return True if the name server was asked since the last call."""
    asked = False
    while select.select([server], [], [], 0)[0]:
        server.recv(512)
        asked = True
    return asked
