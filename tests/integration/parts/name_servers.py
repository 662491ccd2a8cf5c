"""A name server of a test, and threads that ask it."""

from __future__ import annotations

import ctypes
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headway.lookups import ResolverState, resolver_state

NAMELESS = "192.0.2.1"
"""An address for documentation, which no file of hosts names."""
_BEGIN_BYTES = ResolverState.nscount.offset + ctypes.sizeof(ctypes.c_int)
_ADDRESS_BYTES = 16
"""Size of `struct sockaddr_in`, the entries of `nsaddr_list`, which follows `nscount`."""


@contextmanager
def asking(port: int) -> Iterator[None]:
    """Have this thread's resolver ask the name server at this port of the host, once and for a second."""
    state = resolver_state()
    assert state is not None
    at = ctypes.addressof(state)
    before = ctypes.string_at(at, _BEGIN_BYTES + _ADDRESS_BYTES)
    state.retrans = state.retry = state.nscount = 1
    family = int(socket.AF_INET).to_bytes(2, "little")
    address = family + port.to_bytes(2, "big") + socket.inet_aton("127.0.0.1") + bytes(8)
    ctypes.memmove(at + _BEGIN_BYTES, address, _ADDRESS_BYTES)
    try:
        yield
    finally:
        ctypes.memmove(at, before, len(before))


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
